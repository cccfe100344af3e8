/* tcp.c - the transport over TCP: one connection for each pair of workers, one thread that sleeps until one of them can be read or written.
 *
 *   frame   │ kind, tag, bytes │ payload │
 *
 *   up to TCP_EAGER bytes   sent at once; what arrives before its receive is posted is kept
 *   larger                  the receiver grants when its receive is posted (GRANT); the sender sends when it has a grant. So a worker that is
 *                           ahead fills nobody's memory, and no message blocks the others of the connection
 *
 * Invariants
 *   1. messages of one (sender, receiver, tag) arrive in the order of posting: a send does not pass an earlier one of its tag, and a receive
 *      that is posted while a message of its tag is half here gets that message;
 *   2. a connection that ends without a BYE is a lost worker: its operations fail, and a receive from anyone fails with its rank in `from`;
 *   3. the thread owns everything below but the list of posted operations. */
#include "comm/tcp_impl.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define STAGE      (16 << 10) /* bytes read at once where a header is expected */
#define FAIR       (2 << 20)  /* bytes of one connection before the others get a turn */
#define LAST_WORDS 0.3        /* seconds for sends when things go wrong */
#define BYE_TIME   10.0       /* seconds for the others to stop, too */
#define N_EVENT    64

enum { DATA = 0x4c53, GRANT, BYE };
enum { RUN, STOP_CLEAN, STOP_NOW };

typedef struct frame {
    uint32_t nbytes;
    int32_t tag;
    uint32_t kind, zero;
} frame;

/* A message that came before its receive. */
typedef struct arrived {
    struct arrived *next;
    int tag, nbytes;
    char data[];
} arrived;

typedef struct queue {
    ls_net_op *first, **last;
} queue;

typedef struct peer {
    int fd, rank;
    bool gone, bye_sent, bye_came, wants_out;
    /* out */
    queue sends;
    frame out;
    ls_net_op *out_op; /* of a frame of data; NULL: a frame without payload */
    size_t out_at;     /* bytes of the frame that were sent */
    bool out_busy;
    int *grant_out, n_grant_out, cap_out; /* tags that this worker grants    */
    int *grant_in, n_grant_in, cap_in;    /* tags that the peer has granted  */
    /* in */
    frame in;
    size_t in_at; /* bytes of header and payload so far */
    ls_net_op *in_op;
    arrived *in_kept;
    queue receives;
    arrived *kept, **kept_last;
    char stage[STAGE];
    size_t stage_from, stage_to;
} peer;

typedef struct net {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t finished;
    ls_net_op *first, **last; /* posted, not taken over by the thread */
    _Atomic int stop;         /* RUN … */
    char words[256];
    tcp_links links;
    int poll, wake;
    peer *peer; /* by rank */
    queue anyone;
    int n_done; /* operations that ended since the waiters were woken */
} net;

/* ---- operations ---- */

static void append(queue *q, ls_net_op *op)
{
    op->next = NULL;
    *q->last = op;
    q->last = &op->next;
}

static ls_net_op *remove_at(queue *q, ls_net_op **at)
{
    ls_net_op *op = *at;
    *at = op->next;
    if (q->last == &op->next) q->last = at;
    return op;
}

static void complete(net *n, ls_net_op *op)
{
    n->n_done++;
    if (op->on_done) op->on_done(op);
    else atomic_store_explicit(&op->done, true, memory_order_release);
}

static void fail(net *n, ls_net_op *op, int from)
{
    op->failed = true;
    op->from = from;
    complete(n, op);
}

static void fail_all(net *n, queue *q, int from)
{
    while (q->first) fail(n, remove_at(q, &q->first), from);
}

/* The receive that a message of `tag` from p belongs to, taken from its list; NULL: none is posted. */
static ls_net_op *find_receive(net *n, peer *p, int tag)
{
    queue *list[] = {&p->receives, &n->anyone};
    for (int i = 0; i < 2; i++)
        for (ls_net_op **at = &list[i]->first; *at; at = &(*at)->next)
            if ((*at)->tag == tag) return remove_at(list[i], at);
    return NULL;
}

/* The message of what fails because p is gone; the first one stays. */
static void note_loss(net *n, const peer *p, const char *why)
{
    pthread_mutex_lock(&n->lock);
    if (!n->words[0])
        snprintf(n->words, sizeof n->words, "the connection with rank %d on %.63s was lost: %s", p->rank,
                 n->links.name[p->rank], p->bye_came ? "it has finished" : why);
    pthread_mutex_unlock(&n->lock);
}

static void fail_anyone(net *n, int from)
{
    queue anyone = n->anyone; /* one that is posted again waits for the next loss */
    n->anyone = (queue){.last = &n->anyone.first};
    while (anyone.first) {
        ls_net_op *op = anyone.first;
        anyone.first = op->next;
        fail(n, op, from);
    }
}

/* p->bye_came: it has stopped, which is a failure only of what still waits for it. */
static void lose(net *n, peer *p, const char *why)
{
    if (p->gone) return;
    p->gone = true;
    epoll_ctl(n->poll, EPOLL_CTL_DEL, p->fd, NULL);
    if (p->bye_came && !p->out_op && !p->in_op && !p->sends.first && !p->receives.first) return;
    note_loss(n, p, why);
    if (!p->bye_came) fail_anyone(n, p->rank); /* first: they know the cause before their waits end */
    ls_net_op *half[] = {p->out_op, p->in_op};
    p->out_op = p->in_op = NULL;
    for (int i = 0; i < 2; i++)
        if (half[i]) fail(n, half[i], p->rank);
    fail_all(n, &p->sends, p->rank);
    fail_all(n, &p->receives, p->rank);
}

/* ---- out ---- */

static bool push_tag(int **list, int *n, int *cap, int tag)
{
    if (*n == *cap && !ls_grow(list, *n, cap, sizeof **list)) return false;
    (*list)[(*n)++] = tag;
    return true;
}

static bool take_tag(int *list, int *n, int tag)
{
    for (int i = 0; i < *n; i++)
        if (list[i] == tag) {
            memmove(&list[i], &list[i + 1], (size_t)(--*n - i) * sizeof *list);
            return true;
        }
    return false;
}

/* The next send that may start: granted if it is large, and not after one of its tag. */
static ls_net_op *next_send(peer *p)
{
    for (ls_net_op **at = &p->sends.first; *at; at = &(*at)->next) {
        bool waits = false;
        for (ls_net_op *q = p->sends.first; q != *at && !waits; q = q->next) waits = q->tag == (*at)->tag;
        if (waits || ((*at)->nbytes > TCP_EAGER && !take_tag(p->grant_in, &p->n_grant_in, (*at)->tag))) continue;
        return remove_at(&p->sends, at);
    }
    return NULL;
}

static bool next_frame(const net *n, peer *p)
{
    p->out_at = 0;
    p->out_op = NULL;
    if (p->n_grant_out) {
        const int tag = p->grant_out[0];
        (void)take_tag(p->grant_out, &p->n_grant_out, tag);
        p->out = (frame){.tag = tag, .kind = GRANT};
        return true;
    }
    p->out_op = next_send(p);
    if (p->out_op) {
        p->out = (frame){.nbytes = (uint32_t)p->out_op->nbytes, .tag = p->out_op->tag, .kind = DATA};
        return true;
    }
    if (n->stop != STOP_CLEAN || p->bye_sent || p->sends.first) return false;
    p->bye_sent = true;
    p->out = (frame){.kind = BYE};
    return true;
}

static void want_out(net *n, peer *p, bool on)
{
    if (p->wants_out == on || p->gone) return;
    p->wants_out = on;
    struct epoll_event e = {.events = on ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.u32 = (uint32_t)p->rank};
    epoll_ctl(n->poll, EPOLL_CTL_MOD, p->fd, &e);
}

static void write_out(net *n, peer *p)
{
    while (!p->gone && (p->out_busy || next_frame(n, p))) {
        const size_t head = sizeof p->out, all = head + p->out.nbytes;
        p->out_busy = true;
        struct iovec v[2] = {
            {(char *)&p->out + (p->out_at < head ? p->out_at : head), p->out_at < head ? head - p->out_at : 0}};
        const size_t at = p->out_at > head ? p->out_at - head : 0;
        if (p->out_op) v[1] = (struct iovec){(char *)p->out_op->buf + at, p->out.nbytes - at};
        const struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
        const ssize_t k = sendmsg(p->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0 && errno == EAGAIN) {
            want_out(n, p, true);
            return;
        }
        if (k < 0) {
            lose(n, p, strerror(errno));
            return;
        }
        p->out_at += (size_t)k;
        if (p->out_at < all) continue;
        p->out_busy = false;
        ls_net_op *op = p->out_op;
        p->out_op = NULL;
        if (op) complete(n, op);
    }
    want_out(n, p, false);
}

/* ---- in ---- */

/* A message is longer than expected: as a library of messages does, this is the receiver's failure. */
static void fail_long(net *n, ls_net_op *op, int from, int nbytes)
{
    pthread_mutex_lock(&n->lock);
    snprintf(n->words, sizeof n->words, "rank %d sent %d bytes where %d were expected", from, nbytes, op->nbytes);
    pthread_mutex_unlock(&n->lock);
    fail(n, op, from);
}

/* A header is whole: where its payload goes. false: the connection is of no use any more. */
static bool begin_message(net *n, peer *p)
{
    const frame *f = &p->in;
    if (f->kind != DATA && f->nbytes) return false;
    if (f->kind == GRANT) return push_tag(&p->grant_in, &p->n_grant_in, &p->cap_in, f->tag);
    if (f->kind == BYE) {
        p->bye_came = true; /* after all that it sent: nothing more can be received */
        if (p->receives.first) note_loss(n, p, "");
        fail_all(n, &p->receives, p->rank);
        return true;
    }
    if (f->kind != DATA || f->nbytes > INT32_MAX) return false;
    p->in_op = find_receive(n, p, f->tag);
    if (p->in_op && p->in_op->nbytes >= (int)f->nbytes) return true;
    if (p->in_op) {
        fail_long(n, p->in_op, p->rank, (int)f->nbytes);
        p->in_op = NULL;
    }
    p->in_kept = ls_alloc(sizeof *p->in_kept + f->nbytes);
    if (p->in_kept) p->in_kept->tag = f->tag, p->in_kept->nbytes = (int)f->nbytes;
    return p->in_kept != NULL;
}

/* A message that is here already, whole. */
static bool serve_kept(net *n, ls_net_op *op, peer *p)
{
    for (arrived **at = &p->kept; *at; at = &(*at)->next) {
        arrived *a = *at;
        if (a->tag != op->tag) continue;
        *at = a->next;
        if (p->kept_last == &a->next) p->kept_last = at;
        if (a->nbytes > op->nbytes) {
            fail_long(n, op, p->rank, a->nbytes);
        } else {
            op->got = a->nbytes;
            op->from = p->rank;
            if (op->got) memcpy(op->buf, a->data, (size_t)op->got);
            complete(n, op);
        }
        ls_free(a);
        return true;
    }
    return false;
}

static void end_message(net *n, peer *p)
{
    ls_net_op *op = p->in_op;
    if (op) {
        op->got = (int)p->in.nbytes;
        op->from = p->rank;
        p->in_op = NULL;
        complete(n, op);
    } else if (p->in_kept) {
        *p->kept_last = p->in_kept;
        p->kept_last = &p->in_kept->next;
        p->in_kept = NULL;
        op = find_receive(n, p, p->in.tag); /* posted since the header came: the next message is not for it */
        if (op) (void)serve_kept(n, op, p);
    }
    p->in_at = 0;
}

static char *payload(const peer *p)
{
    return p->in_op ? p->in_op->buf : p->in_kept ? p->in_kept->data : NULL;
}

/* What is staged goes to where it belongs. */
static bool unstage(net *n, peer *p)
{
    while (p->stage_from < p->stage_to) {
        const size_t head = sizeof p->in, have = p->stage_to - p->stage_from;
        const size_t left = p->in_at < head ? head - p->in_at : head + p->in.nbytes - p->in_at,
                     k = have < left ? have : left;
        char *to = p->in_at < head ? (char *)&p->in + p->in_at : payload(p) + (p->in_at - head);
        memcpy(to, p->stage + p->stage_from, k);
        p->stage_from += k;
        p->in_at += k;
        if (p->in_at == head && k && !begin_message(n, p)) return false;
        if (p->in_at >= head && p->in_at == head + p->in.nbytes) end_message(n, p);
    }
    return true;
}

static void read_in(net *n, peer *p)
{
    for (size_t total = 0; !p->gone && total < FAIR;) {
        const size_t head = sizeof p->in;
        const bool direct = p->in_at >= head; /* in the middle of a payload */
        char *to = direct ? payload(p) + (p->in_at - head) : p->stage;
        const ssize_t k = recv(p->fd, to, direct ? head + p->in.nbytes - p->in_at : sizeof p->stage, MSG_DONTWAIT);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0 && errno == EAGAIN) return;
        if (k <= 0) {
            lose(n, p, k ? strerror(errno) : "its process has ended");
            return;
        }
        total += (size_t)k;
        bool sane = true;
        if (direct) {
            p->in_at += (size_t)k;
            if (p->in_at == head + p->in.nbytes) end_message(n, p);
        } else {
            p->stage_from = 0;
            p->stage_to = (size_t)k;
            sane = unstage(n, p);
        }
        if (!sane) lose(n, p, "it sent something that is no message, or memory is exhausted");
    }
}

/* ---- posted operations ---- */

static void launch(net *n, ls_net_op *op)
{
    if (op->peer < 0) {
        for (int r = 0; r < n->links.size; r++)
            if (r != n->links.rank && serve_kept(n, op, &n->peer[r])) return;
        append(&n->anyone, op);
        return;
    }
    peer *p = &n->peer[op->peer];
    if (!op->send && serve_kept(n, op, p)) return;
    if (p->gone || (p->bye_came && !op->send) || op->peer == n->links.rank) {
        note_loss(n, p, "it is gone");
        fail(n, op, op->peer);
        return;
    }
    append(op->send ? &p->sends : &p->receives, op);
    if (!op->send && op->nbytes > TCP_EAGER && !push_tag(&p->grant_out, &p->n_grant_out, &p->cap_out, op->tag))
        lose(n, p, "memory is exhausted");
}

/* ---- the thread ---- */

/* Operations as they were posted; what can be sent is sent. */
static void take_posted(net *n)
{
    pthread_mutex_lock(&n->lock);
    ls_net_op *op = n->first;
    n->first = NULL;
    n->last = &n->first;
    pthread_mutex_unlock(&n->lock);
    while (op) {
        ls_net_op *next = op->next;
        launch(n, op);
        op = next;
    }
    for (int r = 0; r < n->links.size; r++)
        if (r != n->links.rank && !n->peer[r].wants_out) write_out(n, &n->peer[r]);
}

static void wake_waiters(net *n)
{
    if (!n->n_done) return;
    n->n_done = 0;
    pthread_mutex_lock(&n->lock);
    pthread_cond_broadcast(&n->finished);
    pthread_mutex_unlock(&n->lock);
}

static void turn(net *n, int ms)
{
    struct epoll_event e[N_EVENT];
    uint64_t count;
    const int k = epoll_wait(n->poll, e, N_EVENT, ms);
    for (int i = 0; i < k; i++) {
        if (e[i].data.u32 == UINT32_MAX) {
            (void)!read(n->wake, &count, sizeof count);
            continue;
        }
        peer *p = &n->peer[e[i].data.u32];
        if (e[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP)) read_in(n, p);
        if (e[i].events & EPOLLOUT) write_out(n, p);
    }
    take_posted(n);
    wake_waiters(n);
}

/* Whether nothing is left to do before the connections are closed. */
static bool quiet(const net *n)
{
    for (int r = 0; r < n->links.size; r++) {
        const peer *p = &n->peer[r];
        if (r == n->links.rank || p->gone) continue;
        if (p->sends.first || p->out_busy || (n->stop == STOP_CLEAN && (!p->bye_sent || !p->bye_came))) return false;
    }
    return true;
}

static void *thread_main(void *arg)
{
    net *n = arg;
    while (n->stop == RUN) turn(n, -1);
    take_posted(n);
    for (const double end = ls_now() + (n->stop == STOP_CLEAN ? BYE_TIME : LAST_WORDS); !quiet(n) && ls_now() < end;)
        turn(n, 20);
    return NULL;
}

/* ---- the transport ---- */

static void drop(net *n)
{
    for (int r = 0; r < n->links.size && n->peer; r++) {
        peer *p = &n->peer[r];
        while (p->sends.first) { /* messages that nobody waits for own their memory */
            ls_net_op *op = remove_at(&p->sends, &p->sends.first);
            if (op->on_done) op->on_done(op);
        }
        while (p->kept) {
            arrived *a = p->kept;
            p->kept = a->next;
            ls_free(a);
        }
        ls_free(p->in_kept);
        ls_free(p->grant_in);
        ls_free(p->grant_out);
    }
    ls_free(n->peer);
    tcp_links_fini(&n->links);
    if (n->poll >= 0) close(n->poll);
    if (n->wake >= 0) close(n->wake);
    pthread_cond_destroy(&n->finished);
    pthread_mutex_destroy(&n->lock);
    ls_free(n);
}

/* A host that is switched off or cut off sends nothing: the kernel asks it, and gives up after `silent` seconds. */
static void tune(int fd, double silent)
{
    const int on = 1, idle = silent > 0 && silent < 30 ? (int)(silent / 3) + 1 : 10, each = idle < 5 ? 1 : 5, tries = 5;
    const unsigned ms = silent < 4e6 ? (unsigned)(silent * 1000) : 4000000000u;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &each, sizeof each);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
    if (silent > 0) setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

static bool watch(net *n, int fd, uint32_t id)
{
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = id};
    return fd >= 0 && !epoll_ctl(n->poll, EPOLL_CTL_ADD, fd, &e);
}

/* 0, or an error number. */
static int begin(net *n, double silent)
{
    n->peer = ls_alloc((size_t)n->links.size * sizeof *n->peer);
    n->poll = epoll_create1(EPOLL_CLOEXEC);
    n->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!n->peer) return ENOMEM;
    if (!watch(n, n->wake, UINT32_MAX)) return errno;
    for (int r = 0; r < n->links.size; r++) {
        peer *p = &n->peer[r];
        p->fd = n->links.fd[r];
        p->rank = r;
        p->sends.last = &p->sends.first;
        p->receives.last = &p->receives.first;
        p->kept_last = &p->kept;
        if (r == n->links.rank) continue;
        tune(p->fd, silent);
        if (!watch(n, p->fd, (uint32_t)r)) return errno;
    }
    sigset_t all, old; /* signals are the main thread's */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int made = pthread_create(&n->thread, NULL, thread_main, n);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return made;
}

ls_status tcp_open(tcp_links *l, double silent, void **out, ls_net_info *info)
{
    net *n = ls_alloc(sizeof *n);
    if (!n) {
        tcp_links_fini(l);
        return ls_nomem(sizeof *n, "connections between hosts");
    }
    n->links = *l;
    *l = (tcp_links){0};
    n->last = &n->first;
    n->anyone.last = &n->anyone.first;
    n->poll = n->wake = -1;
    pthread_mutex_init(&n->lock, NULL);
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&n->finished, &a);
    pthread_condattr_destroy(&a);
    const int code = begin(n, silent);
    if (code) {
        drop(n);
        return ls_fail(LS_E_COMM, "cannot start the thread for connections between hosts: %s", strerror(code));
    }
    *info = (ls_net_info){.rank = n->links.rank, .size = n->links.size, .host = n->links.host};
    *out = n;
    return LS_OK;
}

static void wake(const net *n)
{
    const uint64_t one = 1;
    (void)!write(n->wake, &one, sizeof one);
}

static void post(void *net_p, ls_net_op *op)
{
    net *n = net_p;
    op->next = NULL;
    pthread_mutex_lock(&n->lock);
    const bool sleeps = !n->first;
    *n->last = op;
    n->last = &op->next;
    pthread_mutex_unlock(&n->lock);
    if (sleeps) wake(n);
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
    n->stop = clean ? STOP_CLEAN : STOP_NOW;
    wake(n);
    pthread_join(n->thread, NULL);
    drop(n);
}

static void version(char *text, size_t room)
{
    snprintf(text, room, "TCP");
}

const ls_transport tcp_transport = {
    .head = {LS_TRANSPORT_ABI, "tcp", version}, .post = post, .wait = wait_all, .trouble = trouble, .stop = stop};
