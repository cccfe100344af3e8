/* fake_device.h - a simulated device: memory that faults if the host accesses it at its address, a queue whose entries run only when a caller
 * waits for them, and copies that are counted and can fail. */
#ifndef LS_TESTS_FAKE_DEVICE_H
#define LS_TESTS_FAKE_DEVICE_H

#include "core/device.h"

#include "cmocka_all.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FAKE_QUEUE = 64, FAKE_LANE = 1 << 20 };

typedef struct fake_device {
    ls_device table;
    char *there, *here; /* the same pages at two addresses: for the program, and for the device */
    size_t nbytes, used;
    bool open; /* the host may access it: CPU operations that simulate the device */
    pthread_mutex_t mutex;
    struct {
        void (*op)(void *ctx);
        void *ctx;
    } queue[FAKE_QUEUE];
    int n_queued, n_run;
    int n_lane, n_host;   /* lanes not closed, host buffers not released */
    long n_copy, fail_at; /* copies so far; the one that fails, -1: none */
    ls_mark latest;       /* the latest mark that a copy waited for */
} fake_device;

static inline char *fake_real(const fake_device *f, const void *p)
{
    const char *x = p;
    return x >= f->there && x < f->there + f->nbytes ? f->here + (x - f->there) : (char *)(uintptr_t)x;
}

static inline void fake_run(fake_device *f, ls_mark m) /* under the mutex */
{
    if (m >= FAKE_LANE) return;
    while (f->n_run + 1 < (int)m) {
        const int i = f->n_run++;
        f->queue[i].op(f->queue[i].ctx);
    }
}

/* Queues an operation that runs later. */
static inline void fake_queue(fake_device *f, void (*op)(void *ctx), void *ctx)
{
    assert_true(f->n_queued < FAKE_QUEUE);
    f->queue[f->n_queued].op = op;
    f->queue[f->n_queued++].ctx = ctx;
}

static ls_status fake_info(void *ctx, ls_device_info *out)
{
    const fake_device *f = ctx;
    *out = (ls_device_info){.name = "fake", .total = (int64_t)f->nbytes, .free = (int64_t)(f->nbytes - f->used)};
    return LS_OK;
}

static ls_status fake_alloc(void *ctx, size_t nbytes, void **out)
{
    fake_device *f = ctx;
    const size_t n = (nbytes + 255) / 256 * 256;
    if (f->used + n > f->nbytes) return ls_fail(LS_E_NOMEM, "the fake device has %zu bytes", f->nbytes);
    *out = f->there + f->used;
    f->used += n;
    return LS_OK;
}

static void fake_release(void *ctx, void *p)
{
    (void)ctx;
    (void)p;
}

static ls_status fake_alloc_host(void *ctx, size_t nbytes, void **out)
{
    fake_device *f = ctx;
    *out = calloc(1, nbytes);
    f->n_host++;
    return *out ? LS_OK : ls_fail(LS_E_NOMEM, "no host memory");
}

static void fake_release_host(void *ctx, void *p)
{
    ((fake_device *)ctx)->n_host--;
    free(p);
}

static bool fake_owns(void *ctx, const void *p)
{
    const fake_device *f = ctx;
    const char *x = p;
    return x >= f->there && x < f->there + f->nbytes;
}

static ls_status fake_mark(void *ctx, ls_mark *out)
{
    *out = (ls_mark)((fake_device *)ctx)->n_queued + 1;
    return LS_OK;
}

static ls_status fake_wait(void *ctx, ls_mark m)
{
    fake_device *f = ctx;
    pthread_mutex_lock(&f->mutex);
    fake_run(f, m);
    pthread_mutex_unlock(&f->mutex);
    return LS_OK;
}

static ls_status fake_hold(void *ctx, ls_mark m)
{
    (void)ctx;
    (void)m;
    return LS_OK;
}

static ls_status fake_sync(void *ctx)
{
    return fake_wait(ctx, (ls_mark)((fake_device *)ctx)->n_queued + 1);
}

static ls_status fake_lane_open(void *ctx, int *lane)
{
    *lane = ++((fake_device *)ctx)->n_lane;
    return LS_OK;
}

static void fake_lane_close(void *ctx, int lane)
{
    (void)lane;
    ((fake_device *)ctx)->n_lane--;
}

static ls_status fake_copy(void *ctx, int lane, void *dst, const void *src, size_t nbytes, ls_mark after, ls_mark *done)
{
    fake_device *f = ctx;
    (void)lane;
    pthread_mutex_lock(&f->mutex);
    const bool fails = f->n_copy++ == f->fail_at;
    if (after > f->latest && after < FAKE_LANE) f->latest = after;
    fake_run(f, after);
    if (!fails) memcpy(fake_real(f, dst), fake_real(f, src), nbytes);
    pthread_mutex_unlock(&f->mutex);
    if (done) *done = FAKE_LANE;
    return fails ? ls_fail(LS_E_DEVICE, "the fake device was lost at a copy of %zu bytes", nbytes) : LS_OK;
}

static inline void fake_open(fake_device *f, size_t nbytes, bool open)
{
    *f = (fake_device){.nbytes = (nbytes + 65535) / 65536 * 65536, .fail_at = -1, .open = open};
    pthread_mutex_init(&f->mutex, NULL);
    const int fd = memfd_create("fake device", 0);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)f->nbytes) == 0);
    f->here = mmap(NULL, f->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    f->there = mmap(NULL, f->nbytes, open ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_SHARED, fd, 0);
    assert_true(f->here != MAP_FAILED && f->there != MAP_FAILED);
    close(fd);
    f->table = (ls_device){.ctx = f,
                           .info = fake_info,
                           .alloc = fake_alloc,
                           .release = fake_release,
                           .alloc_host = fake_alloc_host,
                           .release_host = fake_release_host,
                           .owns = fake_owns,
                           .mark = fake_mark,
                           .hold = fake_hold,
                           .wait = fake_wait,
                           .sync = fake_sync,
                           .lane_open = fake_lane_open,
                           .lane_close = fake_lane_close,
                           .copy = fake_copy};
}

static inline void fake_close(fake_device *f)
{
    assert_int_equal(f->n_lane, 0);
    assert_int_equal(f->n_host, 0);
    munmap(f->here, f->nbytes);
    munmap(f->there, f->nbytes);
    pthread_mutex_destroy(&f->mutex);
}

#endif
