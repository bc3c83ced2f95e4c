// One element for each window of a block of rows. What is generated from the windows stands before:
//
//     Number     the type of an element
//     Sum        a type in which the elements of a window can be added
//     METHOD     0 mean, 1 least, 2 greatest, 3 median, 4 first
//     IS_WHOLE   1 for whole numbers, 0 for fractions
//     IS_SIGNED  1 for whole numbers below zero too
//     IS_BOOL    1 where an element is true or false
//     WINDOW     the elements of a window, at most
//     VISIT_ALL  visits the elements of a window that are there, in the order in which they arrive
#include "threads.h"

// The sum over the count; of whole numbers the nearest one, and the greater of two.
WEFT_DEVICE Number divided(Sum sum, u32 count) {
#if IS_BOOL
    return (Number)(2 * sum >= (Sum)count);
#elif IS_WHOLE
    Sum twice = 2 * sum + (Sum)count, by = 2 * (Sum)count, whole = twice / by;
#if IS_SIGNED
    if (twice % by < 0) --whole;
#endif
    return (Number)whole;
#else
    return (Number)(sum / count);
#endif
}

#if IS_WHOLE
WEFT_DEVICE bool is_nan(Number) { return false; }
#else
WEFT_DEVICE bool is_nan(Number value) { return value != value; }
#endif

// What is known of a window while its elements are visited, in the order in which they arrive.
struct Window {
    u32 count;
#if METHOD == 0
    Sum sum;
#elif METHOD == 3
    Number sorted[WINDOW];
    bool has_nan;
    Number nan;
#else
    Number found;
#endif
};

WEFT_DEVICE void visit(Window& window, Number value) {
#if METHOD == 0
    window.sum += (Sum)value;
#elif METHOD == 1 || METHOD == 2
    bool is_better = METHOD == 1 ? value < window.found : value > window.found;
    bool is_first = window.count == 0, is_over = !is_first && is_nan(window.found);
    if (is_first || (!is_over && (is_better || is_nan(value)))) window.found = value;
#elif METHOD == 3
    if (is_nan(value)) window.has_nan = true, window.nan = value;
    u32 place = window.count;
    for (; place > 0 && window.sorted[place - 1] > value; --place)
        window.sorted[place] = window.sorted[place - 1];
    window.sorted[place] = value;
#else
    if (window.count == 0) window.found = value;
#endif
    ++window.count;
}

WEFT_DEVICE Number reduced(const Window& window) {
#if METHOD == 0
    return divided(window.sum, window.count);
#elif METHOD == 3
    u32 half = window.count / 2;
    if (window.has_nan) return window.nan;
    if (window.count % 2) return window.sorted[half];
    return divided((Sum)window.sorted[half - 1] + (Sum)window.sorted[half], 2);
#else
    return window.found;
#endif
}

// `rows` of the outermost dimension come in, and `count` elements go out.
WEFT_KERNEL weft_reduce(const Number* in, Number* out, u64 rows, u64 count) {
    WEFT_PHASE(t) {
        u64 n = WEFT_BLOCK * WEFT_THREADS + t;
        if (n < count) {
            Window window = {};
            (void)rows;
            VISIT_ALL(in, rows, n, window)
            out[n] = reduced(window);
        }
    }
}
