/* device_team.h - worker threads, each with a simulated device (device_double.h), on one host or on several that a fake transport connects.
 * Each also has a communicator on host memory that gives the expected results. A test that includes this file defines worker_main, which
 * creates the communicator. */
#ifndef LS_TESTS_DEVICE_TEAM_H
#define LS_TESTS_DEVICE_TEAM_H

#include "cmocka_all.h"
#include "comm/net_impl.h"
#include "device_checks.h"
#include "fake_transport.h"

#define MAX_W 8
#define ARENA ((size_t)512 << 20)

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SLOW 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SLOW 1
#endif
#endif

typedef struct worker {
    ls_local_world *world, *ref;
    fake_world *net; /* not NULL: several hosts that a fake transport connects */
    int rank, size;
    bool alone; /* a communicator of one worker */
    bool any_order;
    void (*body)(struct worker *w, on_device *o);
    void (*before)(struct worker *w, ls_comm *host,
                   device_double *d); /* if set: runs instead of creating a communicator and calling body */
    wrong error;
} worker;

static void *worker_main(void *arg);

/* Plugins are loaded from the folder that has the NCCL plugin with the fake library. */
static inline void use_fake_nccl(void)
{
    const char *build = getenv("LS_BUILD");
    char dir[600];
    snprintf(dir, sizeof dir, "%s/fake_nccl", build ? build : "build");
    setenv("LS_PLUGIN_DIR", dir, 1);
}

/* The communicator on host memory. */
static ls_status worker_host(const worker *w, ls_comm **out)
{
    if (w->alone) return ls_comm_self(out);
    if (!w->net) return ls_comm_local(w->world, w->rank, out);
    return fake_open(w->net, w->rank, ARENA, out);
}

static void run_threads(int size, worker *w)
{
    pthread_t thread[MAX_W];
    ls_local_world *ref = NULL;
    assert_int_equal(ls_local_world_create(size, ARENA, &ref), LS_OK);
    for (int r = 0; r < size; r++) {
        w[r].ref = ref;
        w[r].rank = r;
        w[r].size = size;
        assert_int_equal(pthread_create(&thread[r], NULL, worker_main, &w[r]), 0);
    }
    for (int r = 0; r < size; r++) pthread_join(thread[r], NULL);
    ls_local_world_destroy(&ref);
    for (int r = 0; r < size; r++)
        if (w[r].error.words[0]) fail_msg("world %d rank %d: %s", size, r, w[r].error.words);
}

static void run_world(int size, worker like)
{
    worker w[MAX_W];
    assert_int_equal(ls_local_world_create(size, ARENA, &like.world), LS_OK);
    for (int r = 0; r < size; r++) w[r] = like;
    run_threads(size, w);
    ls_local_world_destroy(&like.world);
}

/* hosts: the number of workers on each host, ended by 0. */
static void run_hosts(const int *hosts, worker like)
{
    fake_world net = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    worker w[MAX_W];
    like.net = &net;
    for (int h = 0; hosts[h]; h++)
        for (int k = 0; k < hosts[h]; k++) net.host[net.size++] = h;
    for (int r = 0; r < net.size; r++) w[r] = like;
    run_threads(net.size, w);
}

#endif
