/* mpi.c - the transport over MPI 3.1, as a plugin: the only file that knows MPI.
 *
 *   post ─► queue ─► [ MPI thread: Isend/Irecv, Testsome, sleep ] ─► done ─► wait
 *
 * One thread makes all MPI calls (MPI_THREAD_FUNNELED: it is the one that starts MPI). MPI makes no progress without calls, and ranks
 * may outnumber cores, so the thread polls a little, then sleeps between polls: 20 to 100 us while messages are in flight (the
 * sockets' buffers hold milliseconds of a fast link), 5 ms when only the receive from anyone is left. A post wakes it. */
#include "comm/transport.h"

#include <errno.h>
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define BUSY_POLLS 30     /* polls before the first sleep          */
#define NAP_FIRST  20e-6  /* seconds                               */
#define NAP_LONG   100e-6 /* seconds                               */
#define NAP_IDLE   5e-3   /* seconds; only service messages can come */
#define LAST_WORDS 0.3    /* seconds for sends when things go wrong */

typedef struct net {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t posted, finished;
    ls_net_op *first, **last; /* posted, not started  */
    enum { RUN, STOP_CLEAN, STOP_NOW } stop;
    int started; /* 1: running, -1: failed */
    int rank, size, *host;
    char words[512];
    /* the MPI thread's own */
    MPI_Comm comm;
    MPI_Request *req;
    ls_net_op **op;
    MPI_Status *status;
    int *index, n_active, cap, n_anyone; /* n_anyone: receives from anyone among the active */
} net;

static struct timespec in(double seconds) /* from now, CLOCK_MONOTONIC */
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const int64_t ns = t.tv_nsec + (int64_t)(seconds * 1e9);
    return (struct timespec){t.tv_sec + ns / 1000000000, ns % 1000000000};
}

static double now(void)
{
    const struct timespec t = in(0);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void in_words(const char *what, int code, char *words, size_t room)
{
    char text[MPI_MAX_ERROR_STRING] = "?";
    int n = 0;
    MPI_Error_string(code, text, &n);
    snprintf(words, room, "%s: %.300s", what, text);
}

static void version(char *text, size_t room)
{
    char all[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int n = 0;
    MPI_Get_library_version(all, &n);
    all[strcspn(all, ",\n")] = '\0';
    snprintf(text, room, "%s", all);
}

/* LS_MPI_HOSTS=2,1,3: take the first two ranks for one host, the next for another … (the last number goes on): how tests get several
 * hosts on one machine. */
static bool pretend_hosts(net *n)
{
    const char *text = getenv("LS_MPI_HOSTS");
    if (!text || !*text) return false;
    char *end;
    long left = strtol(text, &end, 10), again = left;
    for (int r = 0, host = 0; r < n->size; r++) {
        while (left <= 0) {
            if (*end == ',') again = strtol(end + 1, &end, 10);
            left = again > 0 ? again : 1;
            host++;
        }
        n->host[r] = host;
        left--;
    }
    return true;
}

/* Hosts are numbered in the order of their first ranks. */
static int find_hosts(net *n)
{
    MPI_Comm node;
    int code = MPI_Comm_split_type(n->comm, MPI_COMM_TYPE_SHARED, n->rank, MPI_INFO_NULL, &node), first = n->rank;
    if (code == MPI_SUCCESS) code = MPI_Bcast(&first, 1, MPI_INT, 0, node);
    n->host = malloc((size_t)n->size * sizeof *n->host);
    if (!n->host) return MPI_ERR_NO_MEM;
    if (code == MPI_SUCCESS) code = MPI_Allgather(&first, 1, MPI_INT, n->host, 1, MPI_INT, n->comm);
    if (code != MPI_SUCCESS) return code;
    if (pretend_hosts(n)) return MPI_Comm_free(&node);
    int n_host = 0;
    for (int r = 0; r < n->size; r++) n->host[r] = n->host[r] == r ? n_host++ : n->host[n->host[r]];
    return MPI_Comm_free(&node);
}

static int begin(net *n)
{
    int provided = MPI_THREAD_SINGLE, code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    if (code == MPI_SUCCESS && provided < MPI_THREAD_FUNNELED) {
        snprintf(n->words, sizeof n->words, "this MPI library lacks thread support (MPI_THREAD_FUNNELED is required)");
        return -1;
    }
    if (code == MPI_SUCCESS) code = MPI_Comm_dup(MPI_COMM_WORLD, &n->comm);
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(n->comm, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS) code = MPI_Comm_rank(n->comm, &n->rank);
    if (code == MPI_SUCCESS) code = MPI_Comm_size(n->comm, &n->size);
    if (code == MPI_SUCCESS) code = find_hosts(n);
    if (code != MPI_SUCCESS) in_words("starting MPI", code, n->words, sizeof n->words);
    return code == MPI_SUCCESS ? 1 : -1;
}

static void complete(net *n, ls_net_op *op, int code, const MPI_Status *s)
{
    if (code != MPI_SUCCESS) {
        pthread_mutex_lock(&n->lock);
        in_words(op->send ? "sending" : "receiving", code, n->words, sizeof n->words);
        pthread_mutex_unlock(&n->lock);
        op->failed = true;
    } else if (!op->send && s) {
        MPI_Get_count(s, MPI_BYTE, &op->got);
        op->from = s->MPI_SOURCE;
    }
    if (op->on_done) op->on_done(op);
    else atomic_store_explicit(&op->done, true, memory_order_release);
}

static bool grow(net *n)
{
    const int cap = n->cap ? 2 * n->cap : 64;
    MPI_Request *req = realloc(n->req, (size_t)cap * sizeof *req);
    if (req) n->req = req;
    ls_net_op **op = realloc(n->op, (size_t)cap * sizeof *op);
    if (op) n->op = op;
    MPI_Status *status = realloc(n->status, (size_t)cap * sizeof *status);
    if (status) n->status = status;
    int *index = realloc(n->index, (size_t)cap * sizeof *index);
    if (index) n->index = index;
    if (!req || !op || !status || !index) return false;
    n->cap = cap;
    return true;
}

static void launch(net *n, ls_net_op *op)
{
    int code = MPI_ERR_NO_MEM;
    if (n->n_active < n->cap || grow(n)) {
        MPI_Request *r = &n->req[n->n_active];
        const int from = op->peer < 0 ? MPI_ANY_SOURCE : op->peer;
        code = op->send ? MPI_Isend(op->buf, op->nbytes, MPI_BYTE, op->peer, op->tag, n->comm, r)
                        : MPI_Irecv(op->buf, op->nbytes, MPI_BYTE, from, op->tag, n->comm, r);
    }
    if (code != MPI_SUCCESS) {
        complete(n, op, code, NULL);
        return;
    }
    n->n_anyone += op->peer < 0;
    n->op[n->n_active++] = op;
}

/* Tests what is in flight; the number of operations that ended. */
static int poll_once(net *n)
{
    int n_done = 0;
    if (!n->n_active) return 0;
    const int code = MPI_Testsome(n->n_active, n->req, &n_done, n->index, n->status);
    if (n_done == MPI_UNDEFINED || n_done <= 0) return 0;
    ls_net_op *ended[64];
    int total = 0;
    for (int from = 0;
         from < n_done;) { /* ops may be freed or posted again by on_done: take them off first, in portions */
        const int k = n_done - from < 64 ? n_done - from : 64;
        for (int i = 0; i < k; i++) {
            ended[i] = n->op[n->index[from + i]];
            n->op[n->index[from + i]] = NULL;
            n->n_anyone -= ended[i]->peer < 0;
        }
        for (int i = 0; i < k; i++)
            complete(n, ended[i], code == MPI_ERR_IN_STATUS ? n->status[from + i].MPI_ERROR : code,
                     &n->status[from + i]);
        from += k;
        total += k;
    }
    int left = 0;
    for (int i = 0; i < n->n_active; i++)
        if (n->op[i]) n->op[left] = n->op[i], n->req[left++] = n->req[i];
    n->n_active = left;
    pthread_mutex_lock(&n->lock);
    pthread_cond_broadcast(&n->finished);
    pthread_mutex_unlock(&n->lock);
    return total;
}

static void finish(net *n, bool clean)
{
    if (!clean) {
        for (const double end = now() + LAST_WORDS; n->n_active > n->n_anyone && now() < end; sched_yield())
            poll_once(n);
        return; /* without MPI_Finalize, which would wait for those that are gone */
    }
    for (int i = 0; i < n->n_active; i++) {
        if (n->op[i]->peer < 0) MPI_Cancel(&n->req[i]);
        MPI_Wait(&n->req[i], MPI_STATUS_IGNORE);
    }
    MPI_Comm_free(&n->comm);
    MPI_Finalize();
}

static void *thread_main(void *arg)
{
    net *n = arg;
    prctl(PR_SET_TIMERSLACK, 1000UL); /* ns: naps are short */
    const int ok = begin(n);
    pthread_mutex_lock(&n->lock);
    n->started = ok;
    pthread_cond_broadcast(&n->finished);
    for (int quiet = 0; ok > 0;) {
        ls_net_op *take = n->first;
        n->first = NULL;
        n->last = &n->first;
        if (!take && n->stop != RUN) break;
        if (!take && quiet >= BUSY_POLLS) {
            const struct timespec until = in(n->n_active == n->n_anyone ? NAP_IDLE
                                             : quiet < 2 * BUSY_POLLS   ? NAP_FIRST
                                                                        : NAP_LONG);
            pthread_cond_timedwait(&n->posted, &n->lock, &until);
        }
        pthread_mutex_unlock(&n->lock);
        if (take) quiet = 0;
        while (take) {
            ls_net_op *op = take;
            take = op->next;
            launch(n, op);
        }
        if (poll_once(n)) quiet = 0;
        else {
            if (quiet < BUSY_POLLS) sched_yield();
            if (quiet < 1000) quiet++;
        }
        pthread_mutex_lock(&n->lock);
    }
    const bool clean = n->stop == STOP_CLEAN;
    pthread_mutex_unlock(&n->lock);
    if (ok > 0) finish(n, clean);
    return NULL;
}

static void drop(net *n)
{
    pthread_cond_destroy(&n->posted);
    pthread_cond_destroy(&n->finished);
    pthread_mutex_destroy(&n->lock);
    free(n->host);
    free(n->req);
    free(n->op);
    free(n->status);
    free(n->index);
    free(n);
}

static int start(void **out, ls_net_info *info, char *words, size_t room)
{
    net *n = calloc(1, sizeof *n);
    if (!n) {
        snprintf(words, room, "no memory for the MPI thread");
        return 1;
    }
    n->last = &n->first;
    pthread_mutex_init(&n->lock, NULL);
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&n->posted, &a);
    pthread_cond_init(&n->finished, &a);
    pthread_condattr_destroy(&a);
    sigset_t all, old; /* signals are the main thread's */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int made = pthread_create(&n->thread, NULL, thread_main, n);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (made) {
        snprintf(words, room, "cannot start the MPI thread");
        drop(n);
        return 1;
    }
    pthread_mutex_lock(&n->lock);
    while (!n->started) pthread_cond_wait(&n->finished, &n->lock);
    pthread_mutex_unlock(&n->lock);
    if (n->started < 0) {
        snprintf(words, room, "%s", n->words);
        pthread_join(n->thread, NULL);
        drop(n);
        return 1;
    }
    *info = (ls_net_info){.rank = n->rank, .size = n->size, .host = n->host};
    *out = n;
    return 0;
}

static void post(void *net_p, ls_net_op *op)
{
    net *n = net_p;
    op->next = NULL;
    pthread_mutex_lock(&n->lock);
    *n->last = op;
    n->last = &op->next;
    pthread_cond_signal(&n->posted);
    pthread_mutex_unlock(&n->lock);
}

static bool wait_all(void *net_p, ls_net_op *const *op, int count, double seconds)
{
    net *n = net_p;
    return ls_net_wait(&n->lock, &n->finished, op, count, seconds);
}

static void trouble(void *net_p, char *words, size_t room)
{
    net *n = net_p;
    pthread_mutex_lock(&n->lock);
    snprintf(words, room, "%s", n->words);
    pthread_mutex_unlock(&n->lock);
}

static void stop(void *net_p, bool clean)
{
    net *n = net_p;
    pthread_mutex_lock(&n->lock);
    n->stop = clean ? STOP_CLEAN : STOP_NOW;
    pthread_cond_signal(&n->posted);
    pthread_mutex_unlock(&n->lock);
    pthread_join(n->thread, NULL);
    drop(n);
}

const ls_plugin_head *ls_transport_plugin(void);

const ls_plugin_head *ls_transport_plugin(void)
{
    static const ls_transport t = {.head = {LS_TRANSPORT_ABI, "mpi", version},
                                   .start = start,
                                   .post = post,
                                   .wait = wait_all,
                                   .trouble = trouble,
                                   .stop = stop};
    return &t.head;
}
