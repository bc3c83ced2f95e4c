// One element for each window of a block of rows. What is generated from the windows stands before:
//
//     Number     the type of an element
//     Sum        a type in which the elements of a window can be added
//     METHOD     0 mean, 1 least, 2 greatest, 3 median, 4 first
//     IS_WHOLE   1 for whole numbers, 0 for fractions
//     IS_SIGNED  1 for whole numbers below zero too
//     IS_BOOL    1 where an element is true or false
//     WINDOW     the elements of a window, at most
//     gather()   the elements of a window that are there, in the order in which they arrive
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

WEFT_DEVICE Number reduced(const Number* values, u32 count) {
#if METHOD == 0
    Sum sum = 0;
    for (u32 n = 0; n < count; ++n) sum += (Sum)values[n];
    return divided(sum, count);
#elif METHOD == 1 || METHOD == 2
    Number found = values[0];
    for (u32 n = 1; n < count; ++n) {
        bool is_better = METHOD == 1 ? values[n] < found : values[n] > found;
        if (!is_nan(found) && (is_better || is_nan(values[n]))) found = values[n];
    }
    return found;
#elif METHOD == 3
    Number sorted[WINDOW];
    for (u32 n = 0; n < count; ++n) {
        if (is_nan(values[n])) return values[n];
        u32 place = n;
        for (; place > 0 && sorted[place - 1] > values[n]; --place) sorted[place] = sorted[place - 1];
        sorted[place] = values[n];
    }
    if (count % 2) return sorted[count / 2];
    return divided((Sum)sorted[count / 2 - 1] + (Sum)sorted[count / 2], 2);
#else
    (void)count;
    return values[0];
#endif
}

// `rows` of the outermost dimension come in, and `count` elements go out.
WEFT_KERNEL weft_reduce(const Number* in, Number* out, u64 rows, u64 count) {
    WEFT_PHASE(t) {
        u64 n = WEFT_BLOCK * WEFT_THREADS + t;
        if (n < count) {
            Number values[WINDOW] = {};
            u32 there = gather(in, rows, n, values);
            out[n] = reduced(values, there);
        }
    }
}
