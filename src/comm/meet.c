#include "comm/meet_impl.h"

#include "core/clock.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/str.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/un.h>
#include <unistd.h>

#define HANDSHAKE_TIME 5.0 /* seconds for the three messages */
#define NOTE_TIME      2.0 /* seconds more, so that the list of missing ranks arrives from rank 0 */
#define MAGIC          "LOCKSTP2"
#define N_MAGIC        8

typedef struct challenge {
    char magic[N_MAGIC];
    uint8_t nonce[MEET_KEY];
} challenge;

typedef struct answer {
    char magic[N_MAGIC];
    uint8_t nonce[MEET_KEY];
    meet_hello hello;
    uint8_t mac[MEET_KEY];
} answer;

typedef struct verdict {
    char magic[N_MAGIC];
    int32_t status; /* an ls_status, or WRONG_KEY */
    char words[200];
    uint8_t mac[MEET_KEY];
} verdict;

enum { WRONG_KEY = -1 };
enum { IDLE, CONNECTING, LISTENING, ANSWERED }; /* of a call */

_Static_assert(sizeof(answer) <= sizeof(((meet_pending *)0)->in) && sizeof(verdict) <= sizeof(((meet_call *)0)->in),
               "a message fits into its buffer");

/* ---- keys ---- */

void meet_random(void *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        const ssize_t k = getrandom((char *)p + at, n - at, 0);
        if (k > 0) at += (size_t)k;
        else LS_ASSERT(errno == EINTR);
    }
}

static void digest(ls_sha256 *s, uint8_t out[MEET_KEY])
{
    char hex[65];
    ls_sha256_hex(s, hex);
    for (int i = 0; i < MEET_KEY; i++) {
        const char *h = hex + 2 * i;
        out[i] =
            (uint8_t)((h[0] <= '9' ? h[0] - '0' : h[0] - 'a' + 10) << 4 | (h[1] <= '9' ? h[1] - '0' : h[1] - 'a' + 10));
    }
}

typedef struct piece {
    const void *p;
    size_t n;
} piece;

/* HMAC with SHA-256 over the pieces. */
static void keyed_hash(const meet_key *k, const piece *part, int n_part, uint8_t out[MEET_KEY])
{
    uint8_t pad[64], inner[MEET_KEY];
    ls_sha256 s;
    for (int outer = 0; outer < 2; outer++) {
        for (int i = 0; i < 64; i++) pad[i] = (uint8_t)((i < MEET_KEY ? k->byte[i] : 0) ^ (outer ? 0x5c : 0x36));
        ls_sha256_init(&s);
        ls_sha256_add(&s, pad, sizeof pad);
        if (outer) ls_sha256_add(&s, inner, sizeof inner);
        for (int i = 0; i < n_part && !outer; i++) ls_sha256_add(&s, part[i].p, part[i].n);
        digest(&s, outer ? out : inner);
    }
}

static bool equal(const uint8_t *a, const uint8_t *b) /* in a time that does not depend on the bytes */
{
    unsigned differ = 0;
    for (int i = 0; i < MEET_KEY; i++) differ |= (unsigned)(a[i] ^ b[i]);
    return !differ;
}

meet_key meet_key_of(const char *token, const char *instead)
{
    meet_key k;
    ls_sha256 s;
    const bool set = token && *token;
    ls_sha256_init(&s);
    ls_sha256_add(&s, set ? "lockstep token:" : "lockstep run:", set ? 15 : 13);
    ls_sha256_add(&s, set ? token : instead, strlen(set ? token : instead));
    digest(&s, k.byte);
    return k;
}

meet_key meet_key_derive(const meet_key *k, const void *data, size_t n)
{
    meet_key out;
    keyed_hash(k, &(piece){data, n}, 1, out.byte);
    return out;
}

static void answer_mac(const meet_key *k, const uint8_t *their_nonce, const answer *a, uint8_t out[MEET_KEY])
{
    const piece part[] = {{"answer", 6}, {their_nonce, MEET_KEY}, {a->nonce, MEET_KEY}, {&a->hello, sizeof a->hello}};
    keyed_hash(k, part, 4, out);
}

static void verdict_mac(const meet_key *k, const uint8_t *acceptor, const uint8_t *connector, const verdict *v,
                        uint8_t out[MEET_KEY])
{
    const piece part[] = {{"verdict", 7},
                          {acceptor, MEET_KEY},
                          {connector, MEET_KEY},
                          {&v->status, sizeof v->status},
                          {v->words, sizeof v->words}};
    keyed_hash(k, part, 5, out);
}

/* ---- a meeting ---- */

ls_status meeting_init(meeting *m, const meet_hello *me, double until, double limit)
{
    const size_t n = (size_t)me->size;
    *m = (meeting){.me = *me, .door = -1, .until = until, .limit = limit};
    m->fd = ls_alloc(n * sizeof *m->fd);
    m->expect = ls_alloc(n * sizeof *m->expect);
    m->who = ls_alloc(n * sizeof *m->who);
    m->from = ls_alloc(n * sizeof *m->from);
    if (!m->fd || !m->expect || !m->who || !m->from) {
        meeting_fini(m);
        return ls_nomem(n * sizeof *m->from, "starting");
    }
    for (size_t r = 0; r < n; r++) m->fd[r] = -1;
    return LS_OK;
}

static void drop_pending(meeting *m, int i)
{
    close(m->pending[i].fd);
    m->pending[i] = m->pending[--m->n_pending];
}

static void end_calls(meeting *m)
{
    for (int i = 0; i < m->n_call; i++)
        if (m->call[i].fd >= 0) close(m->call[i].fd);
    ls_free(m->call);
    m->call = NULL;
    m->n_call = 0;
}

void meeting_fini(meeting *m)
{
    end_calls(m);
    while (m->n_pending) drop_pending(m, 0);
    if (m->door >= 0) close(m->door);
    m->door = -1;
    for (int r = 0; r < m->me.size && m->fd; r++)
        if (m->fd[r] >= 0) close(m->fd[r]);
    ls_free(m->fd);
    ls_free(m->expect);
    ls_free(m->who);
    ls_free(m->from);
    m->fd = NULL;
}

/* "10.0.0.2:29500" */
static void address_of(const struct sockaddr_storage *a, char *out, size_t room)
{
    char host[64] = "?", port[16] = "?";
    if (a->ss_family != AF_INET && a->ss_family != AF_INET6) {
        snprintf(out, room, "a local socket");
        return;
    }
    getnameinfo((const struct sockaddr *)a, sizeof *a, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(out, room, a->ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

/* "1, 2 and 3": ranks with missing[r]; at most 8 of them. */
static void list_ranks(const bool *missing, int size, char *out, size_t room)
{
    int n = 0, shown = 0;
    size_t at = 0;
    for (int r = 0; r < size; r++) n += missing[r];
    out[0] = '\0';
    for (int r = 0; r < size && shown < 8 && at < room; r++) {
        if (!missing[r]) continue;
        shown++;
        at += (size_t)snprintf(out + at, room - at, "%s%d", shown == 1 ? "" : shown == n ? " and " : ", ", r);
    }
    if (n > shown && at < room) snprintf(out + at, room - at, " and %d more", n - shown);
}

static bool trusted(const meeting *m, int fd)
{
    struct ucred who = {0};
    socklen_t n = sizeof who;
    return !m->local || (!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) && who.uid == geteuid());
}

#define LEFT "connected and left"

__attribute__((format(printf, 3, 4))) static void stranger(meeting *m, const struct sockaddr_storage *from,
                                                           const char *fmt, ...)
{
    char at[80], what[80];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    address_of(from, at, sizeof at);
    m->n_stranger++;
    ls_debug("comm", "start-up: %s %s", at, what);
    if (m->stranger[0] && !strcmp(what, LEFT)) return; /* says less than what is noted */
    snprintf(m->stranger, sizeof m->stranger, "%.60s %s", at, what);
}

/* Bytes of a message of `want` bytes; whether it is whole. *lost: the connection has ended. */
static bool take(int fd, uint8_t *buf, size_t *n, size_t want, bool *lost)
{
    while (*n < want) {
        const ssize_t k = recv(fd, buf + *n, want - *n, MSG_DONTWAIT);
        if (k > 0) *n += (size_t)k;
        else if (k == 0 || (errno != EAGAIN && errno != EINTR)) *lost = true;
        if (k <= 0) return false;
    }
    return true;
}

/* A message that a new connection's buffer always takes. */
static bool put(int fd, const void *p, size_t n)
{
    return send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n;
}

/* ---- the side that accepts ---- */

static void accept_all(meeting *m)
{
    for (;;) {
        struct sockaddr_storage from = {0};
        socklen_t n = sizeof from;
        const int fd = accept4(m->door, (struct sockaddr *)&from, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) return;
        challenge c;
        memcpy(c.magic, MAGIC, N_MAGIC);
        meet_random(c.nonce, sizeof c.nonce);
        const bool ours = trusted(m, fd);
        if (!ours || !put(fd, &c, sizeof c)) {
            stranger(m, &from, ours ? "disconnected at once" : "is a process of another user");
            close(fd);
            continue;
        }
        if (m->n_pending == MEET_PENDING) {
            int oldest = 0;
            for (int i = 1; i < m->n_pending; i++)
                if (m->pending[i].since < m->pending[oldest].since) oldest = i;
            drop_pending(m, oldest);
        }
        meet_pending *p = &m->pending[m->n_pending++];
        *p = (meet_pending){.fd = fd, .since = ls_now(), .from = from};
        memcpy(p->nonce, c.nonce, sizeof c.nonce);
    }
}

/* Whether a worker that knows the token may join; the failure is that of the whole start-up. */
static ls_status admit(const meeting *m, const meet_hello *h)
{
    if (h->size != m->me.size)
        return ls_fail(LS_E_CONFIG, "a worker with RANK %d and WORLD_SIZE %d tried to join a run of %d workers",
                       h->rank, h->size, m->me.size);
    const bool known = h->rank >= 0 && h->rank < m->me.size && h->to == m->me.rank;
    if (known && m->expect[h->rank] && m->fd[h->rank] < 0) return LS_OK;
    return ls_fail(LS_E_CONFIG, "a worker with RANK %d and WORLD_SIZE %d tried to join a run of %d workers%s", h->rank,
                   h->size, m->me.size,
                   known || h->rank == m->me.rank ? "; this rank is already taken: each worker needs its own RANK"
                                                  : "");
}

/* An answer that is whole: takes the connection, or closes it. */
static ls_status judge(meeting *m, int i)
{
    meet_pending *p = &m->pending[i];
    answer a;
    verdict v = {.status = WRONG_KEY};
    uint8_t mac[MEET_KEY];
    ls_status st = LS_OK;
    memcpy(&a, p->in, sizeof a);
    memcpy(v.magic, MAGIC, N_MAGIC);
    answer_mac(&m->key, p->nonce, &a, mac);
    const bool proved = equal(mac, a.mac);
    if (proved) {
        a.hello.host[sizeof a.hello.host - 1] = a.hello.host_id[sizeof a.hello.host_id - 1] = '\0';
        st = admit(m, &a.hello);
        v.status = (int32_t)st;
        if (st != LS_OK) snprintf(v.words, sizeof v.words, "%s", ls_err_words());
    } else stranger(m, &p->from, "does not know the token of this run");
    verdict_mac(&m->key, p->nonce, a.nonce, &v, v.mac);
    const bool told = put(p->fd, &v, sizeof v);
    if (!proved || st != LS_OK || !told) {
        drop_pending(m, i);
        return st;
    }
    m->fd[a.hello.rank] = p->fd;
    m->who[a.hello.rank] = a.hello;
    m->from[a.hello.rank] = p->from;
    m->pending[i] = m->pending[--m->n_pending];
    return LS_OK;
}

static ls_status hear_pending(meeting *m)
{
    for (int i = m->n_pending - 1; i >= 0; i--) {
        meet_pending *p = &m->pending[i];
        bool lost = false;
        const bool whole = take(p->fd, p->in, &p->n_in, sizeof(answer), &lost);
        if (p->n_in && memcmp(p->in, MAGIC, p->n_in < N_MAGIC ? p->n_in : N_MAGIC) != 0) {
            stranger(m, &p->from, "does not speak the protocol of this version");
            drop_pending(m, i);
        } else if (whole) {
            LS_TRY(judge(m, i));
        } else if (lost || ls_now() - p->since > HANDSHAKE_TIME) {
            stranger(m, &p->from, lost ? LEFT : "connected and sent nothing useful");
            drop_pending(m, i);
        }
    }
    return LS_OK;
}

/* ---- the side that connects ---- */

__attribute__((format(printf, 3, 4))) static void hang_up(meet_call *c, double again, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (!c->refused) vsnprintf(c->why, sizeof c->why, fmt, args); /* a port that is closed later tells less */
    va_end(args);
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    c->phase = IDLE;
    c->again = ls_now() + again;
}

static void dial(meet_call *c)
{
    const double nap = c->n_try++ < 40 ? 0.05 : 0.25;
    c->fd = socket(c->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    c->n_in = 0;
    c->since = ls_now();
    c->phase = CONNECTING;
    if (c->fd < 0 || (connect(c->fd, (const struct sockaddr *)&c->at, c->n_at) && errno != EINPROGRESS))
        hang_up(c, nap, "%s", strerror(errno));
}

/* On one host a port that nobody listens on may be given to the connecting socket itself. */
static bool is_itself(int fd)
{
    struct sockaddr_storage a = {0}, b = {0};
    socklen_t n = sizeof a, k = sizeof b;
    if (getsockname(fd, (struct sockaddr *)&a, &n) || getpeername(fd, (struct sockaddr *)&b, &k)) return false;
    return a.ss_family != AF_UNIX && n == k && !memcmp(&a, &b, n);
}

static void reached(const meeting *m, meet_call *c)
{
    int code = 0;
    socklen_t n = sizeof code;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &code, &n) || code)
        hang_up(c, c->n_try < 40 ? 0.05 : 0.25, "%s", strerror(code));
    else if (is_itself(c->fd)) hang_up(c, 0.05, "Connection refused");
    else if (!trusted(m, c->fd)) hang_up(c, 0.5, "the socket belongs to another user");
    else c->phase = LISTENING;
}

static void reply(meeting *m, meet_call *c)
{
    challenge q;
    answer a = {.hello = m->me};
    memcpy(&q, c->in, sizeof q);
    if (memcmp(q.magic, MAGIC, N_MAGIC) != 0) {
        hang_up(c, 0.5, "another program, or another version of lockstep, uses the port");
        return;
    }
    memcpy(a.magic, MAGIC, N_MAGIC);
    memcpy(c->nonce, q.nonce, sizeof c->nonce);
    meet_random(a.nonce, sizeof a.nonce);
    a.hello.to = c->to;
    answer_mac(&m->key, q.nonce, &a, a.mac);
    memcpy(c->in + sizeof(verdict), a.nonce, sizeof a.nonce); /* kept for the verdict */
    c->n_in = 0;
    c->phase = ANSWERED;
    if (!put(c->fd, &a, sizeof a)) hang_up(c, 0.25, "the connection was closed");
}
_Static_assert(sizeof(verdict) + MEET_KEY <= sizeof(((meet_call *)0)->in), "a verdict and a nonce fit");

static ls_status conclude(meeting *m, meet_call *c)
{
    verdict v;
    uint8_t mac[MEET_KEY];
    memcpy(&v, c->in, sizeof v);
    verdict_mac(&m->key, c->nonce, c->in + sizeof v, &v, mac);
    if (memcmp(v.magic, MAGIC, N_MAGIC) != 0 || !equal(mac, v.mac)) {
        hang_up(c, 0.5, "it has another LOCKSTEP_TOKEN, or belongs to another run");
        c->refused = true;
        return LS_OK;
    }
    v.words[sizeof v.words - 1] = '\0';
    if (v.status != LS_OK) return ls_fail(v.status == LS_E_CONFIG ? LS_E_CONFIG : LS_E_COMM, "%s", v.words);
    m->fd[c->to] = c->fd;
    m->from[c->to] = c->at;
    c->fd = -1;
    c->phase = IDLE;
    return LS_OK;
}

static ls_status hear_call(meeting *m, meet_call *c)
{
    bool lost = false;
    if (m->fd[c->to] >= 0) { /* another address was faster */
        if (c->fd >= 0) hang_up(c, 0, "not needed");
        return LS_OK;
    }
    if (c->phase == IDLE && ls_now() >= c->again) dial(c);
    if (c->phase == CONNECTING) {
        struct pollfd p = {.fd = c->fd, .events = POLLOUT};
        if (poll(&p, 1, 0) > 0) reached(m, c);
    }
    if (c->phase == LISTENING && take(c->fd, c->in, &c->n_in, sizeof(challenge), &lost)) reply(m, c);
    if (c->phase == ANSWERED && take(c->fd, c->in, &c->n_in, sizeof(verdict), &lost)) return conclude(m, c);
    if (lost) hang_up(c, 0.25, "it closed the connection");
    else if (c->phase != IDLE && ls_now() - c->since > HANDSHAKE_TIME)
        hang_up(c, 0.25,
                c->phase == CONNECTING ? "no answer (a firewall?)"
                                       : "another program holds the port and sends nothing");
    return LS_OK;
}

/* ---- all of them ---- */

/* Why a call has not succeeded, in words. */
static const char *why_not(const meet_call *c)
{
    if (c->why[0]) return c->why;
    return c->phase == CONNECTING || c->phase == IDLE ? "no answer yet" : "it has not finished the handshake";
}

static ls_status name_missing(meeting *m)
{
    bool missing[4096] = {false};
    char list[80], at[80], who[200] = "", how[300] = "";
    int n = 0, first = -1;
    for (int r = 0; r < m->me.size && r < 4096; r++)
        if ((missing[r] = m->expect[r] && m->fd[r] < 0)) {
            if (!n++) first = r;
        }
    list_ranks(missing, m->me.size < 4096 ? m->me.size : 4096, list, sizeof list);
    for (int i = 0; i < m->n_call; i++) {
        if (m->call[i].to != first) continue;
        address_of(&m->call[i].at, at, sizeof at);
        if (!*who) snprintf(who, sizeof who, " (%s: %s)", at, why_not(&m->call[i]));
        if (m->call[i].why[0] && !strstr(m->call[i].why, "refused")) { /* the address that says most */
            snprintf(who, sizeof who, " (%s: %s)", at, m->call[i].why);
            break;
        }
    }
    if (m->n_stranger)
        snprintf(how, sizeof how, "; %d other connections were refused, one of them: %.159s", m->n_stranger,
                 m->stranger);
    if (m->me.rank)
        return ls_fail(LS_E_COMM, "rank %d could not connect to rank%s %s within %.0f s%s%s", m->me.rank,
                       n > 1 ? "s" : "", list, m->limit, who, how);
    return ls_fail(
        LS_E_COMM,
        "rank%s %s of %d did not connect within %.0f s; each worker needs its own RANK and the same MASTER_ADDR, MASTER_PORT and LOCKSTEP_TOKEN%s",
        n > 1 ? "s" : "", list, m->me.size, m->limit, how);
}

/* A worker that was connected has gone. */
static ls_status check_present(const meeting *m, const struct pollfd *p, const int *rank, int n)
{
    for (int i = 0; i < n; i++) {
        if (!(p[i].revents & (POLLRDHUP | POLLERR | POLLHUP))) continue;
        const meet_hello *w = &m->who[rank[i]];
        return ls_fail(LS_E_COMM, "rank %d%s%.60s exited during start-up", rank[i], w->host[0] ? " on " : "", w->host);
    }
    return LS_OK;
}

static bool complete(const meeting *m)
{
    for (int r = 0; r < m->me.size; r++)
        if (m->expect[r] && m->fd[r] < 0) return false;
    return true;
}

/* One look at everything, for at most 50 ms. */
static ls_status step(meeting *m, struct pollfd *p, int *rank)
{
    nfds_t n = 0;
    for (int r = 0; r < m->me.size; r++)
        if (m->fd[r] >= 0) rank[n] = r, p[n++] = (struct pollfd){m->fd[r], POLLRDHUP, 0};
    const int n_present = (int)n;
    if (m->door >= 0) p[n++] = (struct pollfd){m->door, POLLIN, 0};
    for (int i = 0; i < m->n_pending; i++) p[n++] = (struct pollfd){m->pending[i].fd, POLLIN, 0};
    for (int i = 0; i < m->n_call; i++)
        if (m->call[i].fd >= 0)
            p[n++] = (struct pollfd){m->call[i].fd, m->call[i].phase == CONNECTING ? POLLOUT : POLLIN, 0};
    (void)poll(p, n, 50);
    LS_TRY(check_present(m, p, rank, n_present));
    if (m->door >= 0) accept_all(m);
    LS_TRY(hear_pending(m));
    for (int i = 0; i < m->n_call; i++) LS_TRY(hear_call(m, &m->call[i]));
    return LS_OK;
}

ls_status meet_all(meeting *m)
{
    const size_t most = (size_t)m->me.size + 1 + MEET_PENDING + (size_t)m->n_call;
    struct pollfd *p = ls_alloc(most * sizeof *p);
    int *rank = ls_alloc((size_t)m->me.size * sizeof *rank);
    ls_status st = p && rank ? LS_OK : ls_nomem(most * sizeof *p, "starting");
    for (int i = 0; i < m->n_call; i++) m->call[i].fd = -1, m->call[i].phase = IDLE;
    while (st == LS_OK && !complete(m)) {
        st = step(m, p, rank);
        if (st == LS_OK && !complete(m) && ls_now() > m->until) st = name_missing(m);
    }
    if (st == LS_OK) { /* nobody else is let in */
        while (m->n_pending) drop_pending(m, 0);
        if (m->door >= 0) close(m->door);
        m->door = -1;
        end_calls(m);
    }
    ls_free(p);
    ls_free(rank);
    return st;
}

/* ---- messages after it ---- */

static ls_status transfer(meeting *m, int rank, void *p, size_t n, bool out)
{
    for (size_t at = 0; at < n;) {
        const ssize_t k = out ? send(m->fd[rank], (char *)p + at, n - at, MSG_NOSIGNAL | MSG_DONTWAIT)
                              : recv(m->fd[rank], (char *)p + at, n - at, MSG_DONTWAIT);
        if (k > 0) {
            at += (size_t)k;
            continue;
        }
        if (k == 0 || (errno != EAGAIN && errno != EINTR))
            return ls_fail(LS_E_COMM, "rank %d exited during start-up%s%s", rank, k ? ": " : "",
                           k ? strerror(errno) : "");
        if (ls_now() > m->until)
            return ls_fail(LS_E_COMM, "rank %d sent no message within %.0f s of the start-up", rank, m->limit);
        struct pollfd w = {m->fd[rank], out ? POLLOUT : POLLIN, 0};
        (void)poll(&w, 1, 50);
    }
    return LS_OK;
}

ls_status meet_send(meeting *m, int rank, const void *p, size_t n)
{
    return transfer(m, rank, (void *)(uintptr_t)p, n, true);
}

ls_status meet_recv(meeting *m, int rank, void *p, size_t n)
{
    return transfer(m, rank, p, n, false);
}

ls_status meet_fail_all(meeting *m, ls_status st)
{
    ls_err_kept why;
    meet_note note = {.status = (int32_t)st};
    snprintf(note.words, sizeof note.words, "%s", ls_err_words());
    ls_err_keep(&why);
    for (int r = 0; r < m->me.size; r++)
        if (m->fd[r] >= 0) (void)send(m->fd[r], &note, sizeof note, MSG_NOSIGNAL | MSG_DONTWAIT);
    ls_err_restore(&why);
    return st;
}

ls_status meet_recv_note(meeting *m)
{
    meet_note note;
    m->until += NOTE_TIME;
    ls_status st = meet_recv(m, 0, &note, sizeof note);
    m->until -= NOTE_TIME;
    LS_TRY(st);
    note.words[sizeof note.words - 1] = '\0';
    if (note.status == LS_OK) return LS_OK;
    return ls_fail(note.status == LS_E_CONFIG ? LS_E_CONFIG : LS_E_COMM, "%s", note.words);
}
