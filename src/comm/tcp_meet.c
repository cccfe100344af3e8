/* tcp_meet.c - workers on several hosts find each other without MPI.
 *
 *   rank 0      listens on MASTER_PORT, or on one of the next ports where another program holds it (torchrun's own store does)
 *   rank r      listens on any port, connects to rank 0 and proves the token (meet_impl.h)
 *   rank 0      when all have come: closes its port and sends everyone the list of addresses
 *   rank r      connects to ranks 1 … r-1 and accepts r+1 …; then closes its port
 *
 * The connections with rank 0 stay. A worker's address is the one from which it reached rank 0, or rank 0's own where they share a host. */
#include "comm/comm_impl.h"
#include "comm/meet_impl.h"
#include "comm/tcp_impl.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/str.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_ADDRESS 8
#define MOST_RANKS  4096

/* What rank 0 tells about a rank. */
typedef struct entry {
    uint16_t family, port; /* family 0: it shares rank 0's host and its address */
    uint8_t address[16];
    int32_t host;
    char name[64];
} entry;

/* ---- addresses ---- */

static void set_port(struct sockaddr_storage *a, int port)
{
    if (a->ss_family == AF_INET6) ((struct sockaddr_in6 *)(void *)a)->sin6_port = htons((uint16_t)port);
    else ((struct sockaddr_in *)(void *)a)->sin_port = htons((uint16_t)port);
}

static socklen_t length(const struct sockaddr_storage *a)
{
    return a->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

static bool is_loopback(const struct sockaddr_storage *a)
{
    if (a->ss_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24) == 127;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
}

static bool loopback_name(const char *name)
{
    return !strcmp(name, "localhost") || !strncmp(name, "127.", 4) || !strcmp(name, "::1");
}

/* A listening socket on `port` (0: any); -1 with errno. */
static int listen_on(bool loopback, int port)
{
    const int on = 1, off = 0;
    for (int v6 = 1; v6 >= 0; v6--) {
        struct sockaddr_storage a = {.ss_family = v6 ? AF_INET6 : AF_INET};
        if (v6) ((struct sockaddr_in6 *)(void *)&a)->sin6_addr = in6addr_any;
        if (loopback && v6) continue; /* 127.0.0.1 alone: nobody else can connect */
        if (loopback) ((struct sockaddr_in *)(void *)&a)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        const int fd = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) continue;
        set_port(&a, port);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (v6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        if (!bind(fd, (struct sockaddr *)&a, length(&a)) && !listen(fd, 512)) return fd;
        const int why = errno;
        close(fd);
        errno = why;
        if (why == EADDRINUSE) return -1; /* not the fault of the family */
    }
    return -1;
}

static int port_of(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } a = {0};
    socklen_t n = sizeof a;
    if (getsockname(fd, &a.any, &n)) return 0;
    return ntohs(a.any.sa_family == AF_INET6 ? a.v6.sin6_port : a.v4.sin_port);
}

/* ---- what the environment says ---- */

typedef struct master {
    const char *address;
    int port;
    bool loopback, has_token;
} master;

static ls_status read_master(master *out)
{
    const char *port = getenv("MASTER_PORT"), *token = getenv("LOCKSTEP_TOKEN");
    int64_t v = 29500;
    *out = (master){.address = getenv("MASTER_ADDR"), .has_token = token && *token};
    if (!out->address || !*out->address)
        return ls_fail(LS_E_CONFIG, "MASTER_ADDR is not set; it must be the name or the address of the host of rank 0");
    if (port && *port && (!ls_parse_i64(port, &v) || v < 1 || v > 65535 - MEET_DOORS))
        return ls_fail(LS_E_CONFIG, "MASTER_PORT is '%.40s'; it must be a port from 1 to %d", port, 65535 - MEET_DOORS);
    out->port = (int)v;
    out->loopback = loopback_name(out->address);
    return LS_OK;
}

static const char *env_or(const char *name)
{
    const char *v = getenv(name);
    return v ? v : "";
}

/* Without a token: what a launcher gives to the workers of one run and not to those of another. It is no secret. */
static meet_key run_key(const ls_start_env *e, const master *at)
{
    char run[400];
    const bool slurm = e->by == LS_STARTED_SRUN;
    snprintf(run, sizeof run, "%d %.100s %.20s %.40s %.40s", at->port, env_or("TORCHELASTIC_RUN_ID"),
             env_or("TORCHELASTIC_RESTART_COUNT"), slurm ? env_or("SLURM_JOB_ID") : "",
             slurm ? env_or("SLURM_STEP_ID") : "");
    return meet_key_of(getenv("LOCKSTEP_TOKEN"), run);
}

/* Workers with the same id share memory: one running kernel, one process namespace. LOCKSTEP_HOST_ID replaces it, so that tests get
 * several hosts on one machine. */
static void host_id(char out[64])
{
    const char *set = getenv("LOCKSTEP_HOST_ID");
    char kernel[64], name[64] = "";
    struct stat s = {0};
    comm_kernel_id(kernel, sizeof kernel);
    gethostname(name, sizeof name - 1);
    (void)stat("/proc/self/ns/pid", &s);
    meet_key k = meet_key_of(NULL, "");
    char all[160];
    snprintf(all, sizeof all, "%s %s %llu", kernel, name, (unsigned long long)s.st_ino);
    k = meet_key_derive(&k, all, strlen(all));
    if (set && *set) snprintf(out, 64, "=%.60s", set);
    else
        for (int i = 0; i < 16; i++) snprintf(out + 2 * i, 3, "%02x", k.byte[i]);
}

/* ---- rank 0 ---- */

/* Whether a start-up of lockstep listens on this port of this host: it sends the first message. */
static bool is_ours(int port)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct timeval wait = {.tv_usec = 300000};
    char first[8] = "";
    bool ours = false;
    if (fd < 0) return false;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    if (!connect(fd, (struct sockaddr *)&a, sizeof a))
        ours = recv(fd, first, sizeof first, MSG_WAITALL) == (ssize_t)sizeof first && !memcmp(first, "LOCKSTP", 7);
    close(fd);
    return ours;
}

static ls_status open_door(const master *at, int *out, int *port)
{
    for (int k = 0; k < MEET_DOORS; k++) {
        *port = at->port + k;
        *out = listen_on(at->loopback, *port);
        if (*out >= 0) return LS_OK;
        if (errno != EADDRINUSE) return ls_fail(LS_E_COMM, "cannot listen on port %d: %s", *port, strerror(errno));
        if (!at->has_token && is_ours(*port))
            return ls_fail(
                LS_E_COMM,
                "port %d is used by another run that is starting; set another MASTER_PORT, or a LOCKSTEP_TOKEN for each run",
                *port);
    }
    return ls_fail(LS_E_COMM,
                   "MASTER_PORT %d and the next %d ports are used by other programs; set another MASTER_PORT", at->port,
                   MEET_DOORS - 1);
}

static void describe(const meeting *m, int r, const meet_hello *h, entry *out)
{
    const struct sockaddr_storage *a = &m->from[r];
    *out = (entry){.port = (uint16_t)h->port};
    snprintf(out->name, sizeof out->name, "%.63s", h->host);
    if (!r || is_loopback(a)) return; /* as rank 0 */
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    const bool mapped = a->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(v6); /* IPv4 at a socket for both */
    out->family = (uint16_t)(mapped ? AF_INET : a->ss_family);
    if (mapped) memcpy(out->address, v6->s6_addr + 12, 4);
    else if (a->ss_family == AF_INET6) memcpy(out->address, v6, 16);
    else memcpy(out->address, &((const struct sockaddr_in *)(const void *)a)->sin_addr, 4);
}

/* Hosts are numbered in the order of their first ranks. */
static void number_hosts(const meet_hello *who, int n, entry *all)
{
    int n_host = 0;
    for (int r = 0; r < n; r++) {
        int q = 0;
        while (strcmp(who[q].host_id, who[r].host_id) != 0) q++;
        all[r].host = q < r ? all[q].host : n_host++;
    }
}

static ls_status gather(meeting *m, const master *at, entry *all, meet_key *session)
{
    int port = 0;
    LS_TRY(open_door(at, &m->door, &port));
    if (port != at->port)
        ls_info("comm", "MASTER_PORT %d is used by another program; rank 0 listens on %d", at->port, port);
    if (!at->has_token && !at->loopback)
        ls_warn(
            "comm",
            "LOCKSTEP_TOKEN is not set: any process that can reach port %d of %s may join this run; set it to the same random text on all hosts",
            port, m->me.host);
    for (int r = 1; r < m->me.size; r++) m->expect[r] = true;
    const ls_status st = meet_all(m);
    if (st != LS_OK) return meet_fail_all(m, st);
    m->who[0] = m->me;
    for (int r = 0; r < m->me.size; r++) describe(m, r, &m->who[r], &all[r]);
    number_hosts(m->who, m->me.size, all);
    meet_random(session, sizeof *session);
    for (int r = 1; r < m->me.size; r++) {
        const meet_note note = {.status = LS_OK};
        LS_TRY(meet_send(m, r, &note, sizeof note));
        LS_TRY(meet_send(m, r, session, sizeof *session));
        LS_TRY(meet_send(m, r, all, (size_t)m->me.size * sizeof *all));
    }
    return LS_OK;
}

/* ---- the others ---- */

/* Every address of MASTER_ADDR with every port that rank 0 may use. */
static ls_status find_master(meeting *m, const master *at)
{
    struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_family = at->loopback ? AF_INET : AF_UNSPEC}, *list = NULL;
    int code;
    const char *name = at->loopback ? "127.0.0.1" : at->address;
    while ((code = getaddrinfo(name, NULL, &want, &list)) != 0) {
        if (ls_now() > m->until)
            return ls_fail(LS_E_COMM, "rank %d cannot find the host MASTER_ADDR=%.100s: %s", m->me.rank, at->address,
                           gai_strerror(code));
        nanosleep(&(struct timespec){0, 200000000}, NULL);
    }
    m->call = ls_alloc((size_t)MAX_ADDRESS * MEET_DOORS * sizeof *m->call);
    for (struct addrinfo *a = list; m->call && a && m->n_call < MAX_ADDRESS * MEET_DOORS; a = a->ai_next) {
        if (a->ai_family != AF_INET && a->ai_family != AF_INET6) continue;
        for (int k = 0; k < MEET_DOORS; k++) {
            meet_call *c = &m->call[m->n_call++];
            *c = (meet_call){.n_at = a->ai_addrlen, .fd = -1};
            memcpy(&c->at, a->ai_addr, a->ai_addrlen);
            set_port(&c->at, at->port + k);
        }
    }
    freeaddrinfo(list);
    return m->call ? LS_OK : ls_nomem(sizeof *m->call, "starting");
}

static ls_status visit(meeting *m, const master *at, entry *all, meet_key *session)
{
    LS_TRY(find_master(m, at));
    const int door = m->door; /* not yet: nobody may come before the list */
    m->door = -1;
    m->expect[0] = true;
    const ls_status st = meet_all(m);
    m->door = door;
    LS_TRY(st);
    LS_TRY(meet_recv_note(m));
    LS_TRY(meet_recv(m, 0, session, sizeof *session));
    return meet_recv(m, 0, all, (size_t)m->me.size * sizeof *all);
}

/* The address of rank r as this rank reaches it. Interfaces have numbers of their own on each host: a link-local address is reached
 * through the interface of the connection with rank 0. */
static struct sockaddr_storage address_of(const meeting *m, const entry *e)
{
    struct sockaddr_storage a = m->from[0], own = {0};
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)&a;
    socklen_t n = sizeof own;
    if (e->family) a = (struct sockaddr_storage){.ss_family = e->family};
    if (e->family == AF_INET) memcpy(&((struct sockaddr_in *)(void *)&a)->sin_addr, e->address, 4);
    if (e->family == AF_INET6) memcpy(&v6->sin6_addr, e->address, 16);
    if (e->family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) &&
        !getsockname(m->fd[0], (struct sockaddr *)&own, &n) && own.ss_family == AF_INET6)
        v6->sin6_scope_id = ((struct sockaddr_in6 *)(void *)&own)->sin6_scope_id;
    set_port(&a, e->port);
    return a;
}

/* Connects with the ranks between 0 and this one, and accepts those above. */
static ls_status connect_others(meeting *m, const entry *all, const meet_key *session)
{
    const int rank = m->me.rank;
    m->key = meet_key_derive(&m->key, session, sizeof *session);
    m->call = ls_alloc((size_t)(rank > 1 ? rank - 1 : 1) * sizeof *m->call);
    if (!m->call) return ls_nomem(sizeof *m->call, "starting");
    for (int r = 1; r < m->me.size; r++) {
        m->expect[r] = r != rank;
        snprintf(m->who[r].host, sizeof m->who[r].host, "%.63s", all[r].name);
        if (r >= rank) continue;
        meet_call *c = &m->call[m->n_call++];
        *c = (meet_call){.to = r, .fd = -1, .at = address_of(m, &all[r])};
        c->n_at = length(&c->at);
    }
    return meet_all(m);
}

/* ---- both ---- */

void tcp_links_fini(tcp_links *l)
{
    for (int r = 0; r < l->size && l->fd; r++)
        if (l->fd[r] >= 0) close(l->fd[r]);
    ls_free(l->fd);
    ls_free(l->host);
    ls_free(l->name);
    *l = (tcp_links){0};
}

static ls_status take_links(meeting *m, const entry *all, tcp_links *out)
{
    const size_t n = (size_t)m->me.size;
    *out = (tcp_links){.rank = m->me.rank, .size = m->me.size};
    out->fd = ls_alloc(n * sizeof *out->fd);
    out->host = ls_alloc(n * sizeof *out->host);
    out->name = ls_alloc(n * sizeof *out->name);
    if (!out->fd || !out->host || !out->name) {
        ls_free(out->fd);
        out->fd = NULL;
        tcp_links_fini(out);
        return ls_nomem(n * 64, "starting");
    }
    for (size_t r = 0; r < n; r++) {
        out->fd[r] = m->fd[r];
        m->fd[r] = -1;
        out->host[r] = all[r].host;
        memcpy(out->name[r], all[r].name, sizeof all[r].name);
    }
    return LS_OK;
}

ls_status tcp_meet(const ls_start_env *e, double limit, tcp_links *out)
{
    master at;
    meeting m;
    meet_key session = {0};
    meet_hello me = {.rank = e->rank, .size = e->size};
    LS_TRY(read_master(&at));
    if (e->size > MOST_RANKS)
        return ls_fail(LS_E_CONFIG, "WORLD_SIZE is %d; workers that meet over TCP may be at most %d", e->size,
                       MOST_RANKS);
    host_id(me.host_id);
    gethostname(me.host, sizeof me.host - 1);
    entry *all = ls_alloc((size_t)e->size * sizeof *all);
    if (!all) return ls_nomem((size_t)e->size * sizeof *all, "starting");
    ls_status st = meeting_init(&m, &me, ls_now() + limit, limit);
    if (st != LS_OK) {
        ls_free(all);
        return st;
    }
    m.key = run_key(e, &at);
    if (e->rank) {
        m.door = listen_on(at.loopback, 0);
        m.me.port = m.door < 0 ? 0 : port_of(m.door);
        st = m.door < 0 ? ls_fail(LS_E_COMM, "cannot listen for connections: %s", strerror(errno))
                        : visit(&m, &at, all, &session);
    } else st = gather(&m, &at, all, &session);
    if (st == LS_OK && e->rank) st = connect_others(&m, all, &session);
    if (st == LS_OK) st = take_links(&m, all, out);
    meeting_fini(&m);
    ls_free(all);
    return st;
}
