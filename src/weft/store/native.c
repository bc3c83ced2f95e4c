/* The inner loops of a recording, without the interpreter: frames are copied into tiles, and tiles
 * are encoded to chunks, by threads that all writers of a process share.
 *
 * `native.py` compiles this file where there is a C compiler. It needs no header of Python and no
 * library but threads: the functions of codecs are passed as addresses.
 */

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* -- threads */

typedef struct task {
    void (*work)(void *job, int64_t item);
    void *job;
    int64_t next, items; /* The next item to begin, and how many there are. */
    int64_t left;        /* Items that are not done. */
    struct task *after;
} task;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static task *first; /* Tasks with items that no thread has begun. */
static int64_t threads, idle;

/* Run the next item of a task. The caller holds the lock, and holds it again afterwards. */
static void run_next(task *one) {
    int64_t item = one->next++;
    if (one->next == one->items) {
        task **place = &first;
        while (*place && *place != one) place = &(*place)->after;
        if (*place) *place = one->after;
    }
    pthread_mutex_unlock(&lock);
    one->work(one->job, item);
    pthread_mutex_lock(&lock);
    if (--one->left == 0) pthread_cond_broadcast(&done);
}

static void *serve(void *unused) {
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!first) {
            idle++;
            pthread_cond_wait(&more, &lock);
            idle--;
        }
        run_next(first);
    }
    return NULL;
}

/* Run all items of a task, on this thread and on those that are free; before others if urgent. */
static void run_all(void (*work)(void *, int64_t), void *job, int64_t items, int is_urgent) {
    task one = {work, job, 0, items, items, NULL};
    if (items < 1) return;
    pthread_mutex_lock(&lock);
    if (items > 1 && threads) {
        task **place = &first;
        while (*place && !is_urgent) place = &(*place)->after;
        one.after = *place;
        *place = &one;
        int64_t woken = items - 1 < idle ? items - 1 : idle;
        pthread_mutex_unlock(&lock); /* Or those that wake would wait for it. */
        for (int64_t n = 0; n < woken; n++) pthread_cond_signal(&more);
        pthread_mutex_lock(&lock);
    }
    while (one.next < one.items) run_next(&one);
    while (one.left) pthread_cond_wait(&done, &lock);
    pthread_mutex_unlock(&lock);
}

/* Have at least `count` threads beside those that call. */
void weft_threads(int64_t count) {
    sigset_t all, before;
    sigfillset(&all); /* Signals are for the threads of the interpreter. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&lock);
    while (threads < count) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, NULL)) break;
        pthread_detach(thread);
        threads++;
    }
    pthread_mutex_unlock(&lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Forget the threads of a parent, in a process that was forked. */
void weft_forget(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&more, NULL);
    pthread_cond_init(&done, NULL);
    first = NULL;
    threads = idle = 0;
}

/* -- memory of a thread */

typedef struct {
    uint8_t *scratch;
    int64_t size;
    void *zstd;
    int64_t settings[3]; /* Those that the zstd context has. */
} workspace;

static pthread_key_t own;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* -- libraries */

typedef struct {
    int (*blosc)(int, int, size_t, size_t, const void *, void *, size_t, const char *, size_t, int);
    void *(*zstd_create)(void);
    size_t (*zstd_free)(void *);
    size_t (*zstd_reset)(void *, int);
    size_t (*zstd_set)(void *, int, int);
    size_t (*zstd_compress)(void *, void *, size_t, const void *, size_t);
    unsigned (*zstd_is_error)(size_t);
    uint32_t (*crc32c)(uint32_t, const uint8_t *, size_t);
} libraries;

static libraries library;

void weft_use(const libraries *found) { library = *found; }

static void free_workspace(void *given) {
    workspace *mine = given;
    if (mine->zstd) library.zstd_free(mine->zstd);
    free(mine->scratch);
    free(mine);
}

static void make_key(void) { pthread_key_create(&own, free_workspace); }

/* Return the memory of this thread, with a scratch buffer of at least `size` bytes, or NULL. */
static workspace *get_workspace(int64_t size) {
    pthread_once(&once, make_key);
    workspace *mine = pthread_getspecific(own);
    if (!mine) {
        mine = calloc(1, sizeof *mine);
        if (!mine || pthread_setspecific(own, mine)) {
            free(mine);
            return NULL;
        }
    }
    if (mine->size < size) {
        free(mine->scratch);
        mine->scratch = malloc(size);
        mine->size = mine->scratch ? size : 0;
    }
    return mine->size < size ? NULL : mine;
}

/* -- copying */

enum { MAX_RANK = 32 };

typedef struct {
    int64_t rank, line; /* Dimensions, and the bytes of a line, which is contiguous. */
    int64_t shape[MAX_RANK], to_steps[MAX_RANK], from_steps[MAX_RANK];
    uint8_t *to;
    const uint8_t *from;
    int64_t parts; /* Items that its lines are cut into. */
} box;

static int64_t lines_of(const box *one) {
    int64_t lines = 1;
    for (int64_t dim = 0; dim < one->rank; dim++) lines *= one->shape[dim];
    return lines;
}

static void copy_lines(const box *one, int64_t begin, int64_t end) {
    int64_t last = one->rank - 1, to_step = 0, from_step = 0;
    if (last >= 0) to_step = one->to_steps[last], from_step = one->from_steps[last];
    while (begin < end) {
        uint8_t *to = one->to;
        const uint8_t *from = one->from;
        int64_t rest = begin, run = 1;
        for (int64_t dim = last; dim >= 0; dim--) {
            int64_t at = rest % one->shape[dim];
            rest /= one->shape[dim];
            to += at * one->to_steps[dim];
            from += at * one->from_steps[dim];
            if (dim == last) run = one->shape[dim] - at;
        }
        if (run > end - begin) run = end - begin;
        for (int64_t n = 0; n < run; n++) memcpy(to + n * to_step, from + n * from_step, one->line);
        begin += run;
    }
}

static void copy_item(void *given, int64_t item) {
    const box *one = given;
    for (; item >= one->parts; one++) item -= one->parts;
    int64_t lines = lines_of(one);
    copy_lines(one, lines * item / one->parts, lines * (item + 1) / one->parts);
}

/* Copy boxes of lines between places that do not overlap, in items of about `size` bytes. */
void weft_copy(box *boxes, int64_t count, int64_t size) {
    int64_t items = 0;
    for (box *one = boxes; one < boxes + count; one++) {
        one->parts = lines_of(one) * one->line / size;
        if (one->parts < 1) one->parts = 1;
        items += one->parts;
    }
    run_all(copy_item, boxes, items, 1);
}

/* -- encoding */

enum { STORED, BLOSC, ZSTD };
enum { ZSTD_LEVEL = 100, ZSTD_HASH_LOG = 102, ZSTD_CHECKSUM = 201, ZSTD_RESET_ALL = 3 };

typedef struct {
    const uint8_t *const *pieces; /* The pieces of each tile, one tile after the other. */
    int64_t count, pieces_each, piece;
    const uint8_t *fill; /* An element; a tile of nothing else is not stored. NULL: all are. */
    int64_t fill_size;
    int64_t group; /* Tiles of an item. Their chunks lie one after the other. */
    uint8_t *out;   /* Chunks; of tiles that are stored as they are, the checksums alone. */
    int64_t room;   /* Bytes of `out` for each tile. */
    int64_t *sizes; /* The bytes of each chunk, 0 if it is not stored, -1 if encoding failed. */
    int64_t codec, level, shuffle, width, block, hash_log, has_content_checksum;
    const char *name;
    int64_t has_checksum;
} encoding;

static int is_fill(const encoding *job, const uint8_t *const *pieces) {
    int64_t width = job->fill_size, size = job->piece;
    for (int64_t n = 0; n < job->pieces_each; n++) {
        const uint8_t *piece = pieces[n];
        if (memcmp(piece, job->fill, width) || memcmp(piece + size - width, job->fill, width))
            return 0;
        if (memcmp(piece, piece + width, size - width)) return 0;
    }
    return 1;
}

static int64_t put_checksum(uint32_t sum, uint8_t *out) {
    for (int n = 0; n < 4; n++) out[n] = (uint8_t)(sum >> 8 * n);
    return 4;
}

/* Return the bytes of a tile that is stored as it is. */
static int64_t store(const encoding *job, const uint8_t *const *pieces, uint8_t *out) {
    int64_t stored = job->pieces_each * job->piece;
    uint32_t sum = 0;
    if (!job->has_checksum) return stored;
    for (int64_t n = 0; n < job->pieces_each; n++)
        sum = library.crc32c(sum, pieces[n], job->piece);
    return stored + put_checksum(sum, out);
}

static int64_t compress_zstd(const encoding *job, workspace *mine, const uint8_t *tile,
                             int64_t size, uint8_t *out) {
    const int64_t wanted[3] = {job->level, job->hash_log, job->has_content_checksum};
    if (!mine->zstd || memcmp(mine->settings, wanted, sizeof wanted)) {
        if (!mine->zstd) mine->zstd = library.zstd_create();
        if (!mine->zstd) return -1;
        memcpy(mine->settings, wanted, sizeof wanted);
        library.zstd_reset(mine->zstd, ZSTD_RESET_ALL);
        library.zstd_set(mine->zstd, ZSTD_LEVEL, (int)job->level);
        if (job->hash_log) library.zstd_set(mine->zstd, ZSTD_HASH_LOG, (int)job->hash_log);
        library.zstd_set(mine->zstd, ZSTD_CHECKSUM, (int)job->has_content_checksum);
    }
    size_t stored = library.zstd_compress(mine->zstd, out, job->room - 4, tile, size);
    return library.zstd_is_error(stored) ? -1 : (int64_t)stored;
}

/* Return the bytes of a tile that is compressed. */
static int64_t compress(const encoding *job, const uint8_t *const *pieces, uint8_t *out) {
    int64_t size = job->pieces_each * job->piece, stored;
    workspace *mine = get_workspace(job->pieces_each > 1 ? size : 0);
    const uint8_t *tile = pieces[0];
    if (!mine) return -1;
    if (job->pieces_each > 1) {
        for (int64_t n = 0; n < job->pieces_each; n++)
            memcpy(mine->scratch + n * job->piece, pieces[n], job->piece);
        tile = mine->scratch;
    }
    if (job->codec == BLOSC) /* With no more room, bytes that do not compress are stored. */
        stored = library.blosc((int)job->level, (int)job->shuffle, job->width, size, tile, out,
                               size + 16, job->name, job->block, 1);
    else
        stored = compress_zstd(job, mine, tile, size, out);
    if (stored < 1) return -1;
    if (job->has_checksum) stored += put_checksum(library.crc32c(0, out, stored), out + stored);
    return stored;
}

static void encode_item(void *given, int64_t item) {
    encoding *job = given;
    int64_t begin = item * job->group, end = begin + job->group;
    uint8_t *out = job->out + begin * job->room;
    if (end > job->count) end = job->count;
    for (int64_t n = begin; n < end; n++) {
        const uint8_t *const *pieces = job->pieces + n * job->pieces_each;
        if (job->fill && is_fill(job, pieces)) {
            job->sizes[n] = 0;
        } else if (job->codec == STORED) {
            job->sizes[n] = store(job, pieces, job->out + n * job->room);
        } else {
            job->sizes[n] = compress(job, pieces, out);
            if (job->sizes[n] > 0) out += job->sizes[n];
        }
    }
}

/* Encode tiles to chunks. */
void weft_encode(encoding *job) {
    run_all(encode_item, job, (job->count + job->group - 1) / job->group, 0);
}
