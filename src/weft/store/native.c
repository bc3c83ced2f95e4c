/* The inner loops of recording and reading, without the interpreter: frames are copied into tiles,
 * and tiles are encoded to chunks, by threads that all writers of a process share; chunks of shards
 * are decoded and copied to where they belong, by the threads that call.
 *
 * `native.py` compiles this file where there is a C compiler. It needs no header of Python and no
 * library but threads: the functions of codecs are passed as addresses.
 */

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    void *zstd, *unzstd;
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
    int (*unblosc)(const void *, void *, size_t, int);
    void *(*unzstd_create)(void);
    size_t (*unzstd_free)(void *);
    size_t (*unzstd)(void *, void *, size_t, const void *, size_t);
} libraries;

static libraries library;

void weft_use(const libraries *found) { library = *found; }

static void free_workspace(void *given) {
    workspace *mine = given;
    if (mine->zstd) library.zstd_free(mine->zstd);
    if (mine->unzstd) library.unzstd_free(mine->unzstd);
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

static void put_u32(uint8_t *at, uint32_t value) {
    for (int n = 0; n < 4; n++) at[n] = (uint8_t)(value >> 8 * n);
}

static uint32_t get_u32(const uint8_t *at) {
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static int64_t put_checksum(uint32_t sum, uint8_t *out) {
    put_u32(out, sum);
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

/* -- reading */

typedef struct {
    int64_t low[MAX_RANK], high[MAX_RANK]; /* The box to read, relative to the shard. */
    int64_t to_steps[MAX_RANK];
    uint8_t *to; /* Where its first element goes. */
    const uint64_t *offsets, *sizes;
    int64_t file, chunks; /* The chunks that the box meets. */
} shard_box;

typedef struct {
    const shard_box *boxes;
    int64_t chunks, rank;
    int64_t chunk[MAX_RANK], slot_steps[MAX_RANK], from_steps[MAX_RANK];
    int64_t width, size, most; /* Bytes of an element, of a chunk, and of a stored chunk at most. */
    int64_t codec, has_checksum;
    const uint8_t *fill; /* An element of a chunk that is not stored. */
    const char *path; /* Of chunks that are files: what comes before their places, or NULL. */
    int64_t separator;
    int64_t group; /* Chunks that a thread reads before it looks for others. */
    int64_t next, has_failed, fetched;
} reading;

static int read_all(int64_t file, uint8_t *out, int64_t size, uint64_t offset) {
    while (size > 0) {
        ssize_t got = pread((int)file, out, size, offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 1) return 0;
        out += got, offset += got, size -= got;
    }
    return 1;
}

static void fill_lines(const box *one, const uint8_t *fill, int64_t width) {
    box same = *one;
    for (int64_t at = 0; at < one->line; at += width) memcpy(one->to + at, fill, width);
    same.from = one->to;
    memset(same.from_steps, 0, sizeof same.from_steps);
    copy_lines(&same, 1, lines_of(&same));
}

/* Decode the blocks of a Blosc frame that have `span` bytes of a chunk, from the byte `from` on.
 *
 * Blocks are independent, and a table says where each begins: the others are left out of it.
 */
static int unblosc(const reading *job, uint8_t *stored, int64_t size, uint8_t *out, int64_t from,
                   int64_t span) {
    enum { FLAGS = 2, SIZE = 4, BLOCK = 8, STORED_SIZE = 12, TABLE = 16, IS_RAW = 2 };
    /* The library trusts what the header says: the bytes of the data and of the frame. */
    if (size < TABLE || get_u32(stored + SIZE) != job->size || get_u32(stored + STORED_SIZE) != size)
        return 0;
    int64_t block = get_u32(stored + BLOCK), count = block ? (job->size + block - 1) / block : 0;
    int64_t low = 0, high = job->size;
    if (!(stored[FLAGS] & IS_RAW) && count > 1 && TABLE + 4 * count <= size) {
        int64_t begin = from / block, end = (from + span + block - 1) / block;
        if (begin == count - 1 && job->size % block) begin--; /* A short block never stands alone. */
        low = begin * block;
        if (end < count) high = end * block;
        memmove(stored + TABLE, stored + TABLE + 4 * begin, 4 * (end - begin));
        put_u32(stored + SIZE, (uint32_t)(high - low));
    }
    return library.unblosc(stored, out + low, high - low, 1) == high - low;
}

/* Decode stored bytes to a chunk, at least `span` bytes of it; return it, or NULL. */
static const uint8_t *decode(const reading *job, workspace *mine, uint8_t *stored, int64_t size,
                             uint8_t *out, int64_t from, int64_t span) {
    if (job->has_checksum) {
        size -= 4;
        if (size < 0 || library.crc32c(0, stored, size) != get_u32(stored + size)) return NULL;
    }
    if (job->codec == STORED) return size == job->size ? stored : NULL;
    if (job->codec == BLOSC) return unblosc(job, stored, size, out, from, span) ? out : NULL;
    if (!mine->unzstd) mine->unzstd = library.unzstd_create();
    if (!mine->unzstd) return NULL;
    size_t got = library.unzstd(mine->unzstd, out, job->size, stored, size);
    return got == (size_t)job->size ? out : NULL;
}

typedef struct {
    int64_t place[MAX_RANK], slot; /* Of its chunk. */
    box lines;
    int64_t from, span; /* The first byte of the chunk that it needs, and how many. */
} part;

/* Find the part of a chunk that a box takes. */
static part find_part(const reading *job, const shard_box *shard, int64_t number) {
    part one;
    int64_t rank = job->rank;
    uint8_t *to = shard->to;
    one.slot = one.from = 0, one.span = job->width;
    for (int64_t dim = rank - 1; dim >= 0; dim--) {
        int64_t extent = job->chunk[dim], low = shard->low[dim], high = shard->high[dim];
        int64_t first = low / extent, count = (high - 1) / extent + 1 - first;
        int64_t place = first + number % count, begin = place * extent, end = begin + extent;
        number /= count;
        one.place[dim] = place;
        one.slot += place * job->slot_steps[dim];
        if (begin < low) one.from += (low - begin) * job->from_steps[dim], begin = low;
        if (end > high) end = high;
        to += (begin - low) * shard->to_steps[dim];
        one.lines.shape[dim] = end - begin;
        one.span += (end - begin - 1) * job->from_steps[dim];
    }
    one.lines.to = to;
    one.lines.line = one.lines.shape[--rank] * job->width;
    memcpy(one.lines.to_steps, shard->to_steps, rank * sizeof *shard->to_steps);
    memcpy(one.lines.from_steps, job->from_steps, rank * sizeof *job->from_steps);
    while (rank > 0 && one.lines.to_steps[rank - 1] == one.lines.line &&
           one.lines.from_steps[rank - 1] == one.lines.line)
        one.lines.line *= one.lines.shape[--rank];
    one.lines.rank = rank;
    return one;
}

/* Read a part of a chunk that is stored at some place of a file. */
static int read_part(reading *job, part *one, int64_t file, uint64_t offset, uint64_t size) {
    workspace *mine = get_workspace(job->most + (job->codec == STORED ? 0 : job->size));
    box *lines = &one->lines;
    if (!mine || size > (uint64_t)job->most) return 0;
    int is_raw = job->codec == STORED && !job->has_checksum;
    if (is_raw) {
        if (size != (uint64_t)job->size) return 0;
        offset += one->from, size = one->span, one->from = 0;
    }
    __atomic_fetch_add(&job->fetched, (int64_t)size, __ATOMIC_RELAXED);
    if (is_raw && lines->rank == 0) return read_all(file, lines->to, size, offset);
    uint8_t *stored = mine->scratch, *out = stored + job->most;
    if (lines->rank == 0 && lines->line == job->size) out = lines->to;
    if (!read_all(file, stored, size, offset)) return 0;
    lines->from = is_raw ? stored : decode(job, mine, stored, size, out, one->from, one->span);
    if (!lines->from) return 0;
    lines->from += one->from;
    if (lines->from != lines->to) copy_lines(lines, 0, lines_of(lines));
    return 1;
}

/* Open the file of a chunk; return -1 and set `errno` if that fails. */
static int open_chunk(const reading *job, const part *one) {
    char path[4096];
    size_t end = strlen(job->path);
    if (end + 21 * job->rank > sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(path, job->path, end);
    for (int64_t dim = 0; dim < job->rank; dim++) {
        if (dim) path[end++] = (char)job->separator;
        end += sprintf(path + end, "%lld", (long long)one->place[dim]);
    }
    path[end] = 0;
    return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

static int read_chunk(reading *job, const shard_box *shard, int64_t number) {
    part one = find_part(job, shard, number);
    if (!job->path && shard->sizes[one.slot] != UINT64_MAX)
        return read_part(job, &one, shard->file, shard->offsets[one.slot], shard->sizes[one.slot]);
    int file = job->path ? open_chunk(job, &one) : -1;
    if (file < 0) {
        if (job->path && errno != ENOENT && errno != ENOTDIR) return 0;
        fill_lines(&one.lines, job->fill, job->width);
        return 1;
    }
    struct stat status;
    int is_read = !fstat(file, &status) && read_part(job, &one, file, 0, status.st_size);
    close(file);
    return is_read;
}

/* Let the system fetch chunks that are not in memory, while others are decoded. */
static void prefetch(const reading *job, const shard_box *shard, int64_t number, int64_t count) {
#ifdef POSIX_FADV_WILLNEED
    for (; count > 0 && !job->path; count--, number++) {
        while (number >= shard->chunks) number -= shard++->chunks;
        int64_t slot = find_part(job, shard, number).slot;
        if (shard->sizes[slot] != UINT64_MAX)
            posix_fadvise((int)shard->file, shard->offsets[slot], shard->sizes[slot],
                          POSIX_FADV_WILLNEED);
    }
#endif
}

/* Read chunks until about `size` bytes are decoded; return whether there may be more to do. */
int64_t weft_read(reading *job, int64_t size) {
    for (int64_t left = size / job->size; left >= 0; left -= job->group) {
        int64_t begin = __atomic_fetch_add(&job->next, job->group, __ATOMIC_RELAXED);
        int64_t end = begin + job->group < job->chunks ? begin + job->group : job->chunks;
        const shard_box *shard = job->boxes;
        int64_t number = begin;
        if (begin >= job->chunks) return 0;
        while (number >= shard->chunks) number -= shard++->chunks;
        if (end > begin + 1) prefetch(job, shard, number, end - begin);
        for (int64_t n = begin; n < end; n++, number++) {
            if (__atomic_load_n(&job->has_failed, __ATOMIC_RELAXED)) return 0;
            if (number == shard->chunks) number = 0, shard++;
            if (!read_chunk(job, shard, number))
                __atomic_store_n(&job->has_failed, 1, __ATOMIC_RELAXED);
        }
    }
    return 1;
}
