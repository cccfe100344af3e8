/* Workers that meet over TCP, as threads of one process: strangers, wrong tokens, ports that others hold, workers that are missing or die; messages
 * over the connections; the shared memory of a host, with wrong numbers in it. */
#include "cmocka_all.h"

#include "comm/local_impl.h"
#include "comm/meet_impl.h"
#include "comm/tcp_impl.h"
#include "core/clock.h"
#include "core/mem.h"
#include "core/rng.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static void nap(double seconds)
{
    nanosleep(&(struct timespec){(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)}, NULL);
}

static struct sockaddr_in at_port(int port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int hold_port(int port) /* 0: any */
{
    const struct sockaddr_in a = at_port(port);
    const int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (const struct sockaddr *)&a, sizeof a) || listen(fd, 16)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* A port with free ports after it. */
static int free_port(void)
{
    static int next;
    if (!next) next = 20000 + (int)(getpid() * 37 % 10000);
    for (;; next += MEET_DOORS) {
        int fd[MEET_DOORS], n = 0;
        while (n < MEET_DOORS && (fd[n] = hold_port(next + n)) >= 0) n++;
        for (int k = 0; k < n; k++) close(fd[k]);
        if (n < MEET_DOORS) continue;
        next += MEET_DOORS;
        return next - MEET_DOORS;
    }
}

static int knock(int port)
{
    const struct sockaddr_in a = at_port(port);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (!connect(fd, (const struct sockaddr *)&a, sizeof a)) return fd;
    close(fd);
    return -1;
}

static int set_run(const char *token)
{
    char text[16];
    const int port = free_port();
    snprintf(text, sizeof text, "%d", port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", text, 1);
    setenv("LOCKSTEP_TOKEN", token, 1);
    return port;
}

typedef struct worker {
    pthread_t thread;
    ls_start_env e;
    double limit, took;
    tcp_links links;
    ls_status st;
    char words[LS_ERR_WORDS];
} worker;

static void *worker_main(void *arg)
{
    worker *w = arg;
    const double begin = ls_now();
    w->st = tcp_meet(&w->e, w->limit, &w->links);
    w->took = ls_now() - begin;
    snprintf(w->words, sizeof w->words, "%s", w->st == LS_OK ? "" : ls_err_words());
    return NULL;
}

static void begin(worker *w, int rank, int size, double limit)
{
    *w = (worker){.e = {.by = LS_STARTED_TORCH, .words = "a test", .rank = rank, .size = size}, .limit = limit};
    assert_int_equal(pthread_create(&w->thread, NULL, worker_main, w), 0);
}

static void end(worker *w)
{
    pthread_join(w->thread, NULL);
}

static void expect_ok(worker *w, int n)
{
    for (int r = 0; r < n; r++) {
        end(&w[r]);
        if (w[r].st != LS_OK) fail_msg("rank %d: %s", r, w[r].words);
    }
    for (int r = 0; r < n; r++) tcp_links_fini(&w[r].links);
}

static void expect_words(const worker *w, ls_status st, const char *words)
{
    if (w->st != st || !strstr(w->words, words))
        fail_msg("rank %d: status %d '%s', expected %d '%s'", w->e.rank, (int)w->st, w->words, (int)st, words);
}

/* ---- meeting ---- */

static void workers_meet_whatever_their_order(void **state)
{
    (void)state;
    worker w[5];
    (void)set_run("a token");
    for (int i = 0; i < 5; i++) begin(&w[(i * 3 + 2) % 5], (i * 3 + 2) % 5, 5, 30);
    expect_ok(w, 5);
}

static void a_thousand_random_byte_strings_change_nothing(void **state)
{
    (void)state;
    worker w[3];
    int silent[100], port = set_run("a token"), n = 0;
    begin(&w[0], 0, 3, 60);
    for (int i = 0; i < 200 && (silent[0] = knock(port)) < 0; i++) nap(0.02);
    for (n = 1; n < 100; n++) silent[n] = knock(port); /* connect and send nothing: more than there are slots */
    for (int i = 0; i < 1000; i++) {
        uint8_t text[700];
        const size_t len = ls_rng_u64(5, (uint64_t)i) % sizeof text;
        for (size_t k = 0; k < len; k++) text[k] = (uint8_t)ls_rng_u64((uint64_t)i + 100, k);
        if (i % 10 == 0) memcpy(text, "LOCKSTP2", 8); /* some begin well */
        const int fd = knock(port);
        if (fd < 0) fail_msg("the port is closed after %d strings: %s", i, strerror(errno));
        (void)!send(fd, text, len, MSG_NOSIGNAL);
        close(fd);
        if (i == 500) begin(&w[1], 1, 3, 60);
    }
    begin(&w[2], 2, 3, 60);
    expect_ok(w, 3);
    while (n--) close(silent[n]);
    assert_true(knock(port) < 0); /* closed after all have come */
}

static void a_port_that_another_program_holds_is_passed_over(void **state)
{
    (void)state;
    worker w[2];
    const int port = set_run("a token"), held = hold_port(port), other = hold_port(port + 1);
    assert_true(held >= 0 && other >= 0);
    begin(&w[1], 1, 2, 30);
    nap(0.1);
    begin(&w[0], 0, 2, 30);
    expect_ok(w, 2);
    close(held);
    close(other);
}

static void a_worker_without_the_token_is_refused(void **state)
{
    (void)state;
    worker w[2];
    const int port = set_run("the token");
    int fd;
    begin(&w[0], 0, 2, 4);
    while ((fd = knock(port)) < 0) nap(0.02);
    close(fd);
    setenv("LOCKSTEP_TOKEN", "another", 1);
    begin(&w[1], 1, 2, 3);
    end(&w[0]);
    end(&w[1]);
    expect_words(&w[1], LS_E_COMM, "LOCKSTEP_TOKEN");
    expect_words(&w[0], LS_E_COMM, "rank 1 of 2 did not connect");
    expect_words(&w[0], LS_E_COMM, "does not know the token");
}

static void two_runs_with_one_port_and_two_tokens_do_not_mix(void **state)
{
    (void)state;
    worker a[2], b[2];
    const int port = set_run("one");
    int fd;
    begin(&a[0], 0, 2, 30);
    while ((fd = knock(port)) < 0) nap(0.02);
    close(fd);
    setenv("LOCKSTEP_TOKEN", "two", 1);
    begin(&b[0], 0, 2, 30);
    begin(&b[1], 1, 2, 30);
    expect_ok(b, 2);
    setenv("LOCKSTEP_TOKEN", "one", 1);
    begin(&a[1], 1, 2, 30);
    expect_ok(a, 2);
}

static void a_rank_that_is_given_twice_is_refused(void **state)
{
    (void)state;
    worker w[3];
    (void)set_run("a token");
    begin(&w[0], 0, 3, 30);
    begin(&w[1], 1, 3, 30);
    nap(0.3);
    begin(&w[2], 1, 3, 30);
    for (int i = 0; i < 3; i++) end(&w[i]);
    expect_words(&w[0], LS_E_CONFIG, "RANK 1");
    expect_words(&w[2], LS_E_CONFIG, "already taken");
    assert_true(w[0].took < 10 && w[1].took < 10 && w[1].st != LS_OK);
}

static void those_that_are_missing_are_named_within_the_limit(void **state)
{
    (void)state;
    worker w[2];
    (void)set_run("a token");
    begin(&w[0], 0, 4, 3);
    begin(&w[1], 1, 4, 3);
    end(&w[0]);
    end(&w[1]);
    expect_words(&w[0], LS_E_COMM, "ranks 2 and 3 of 4 did not connect within 3 s");
    expect_words(&w[1], LS_E_COMM, "ranks 2 and 3 of 4"); /* rank 0 tells those that wait */
    assert_true(w[0].took < 10 && w[1].took < 12);
}

static void without_rank_0_the_others_say_so(void **state)
{
    (void)state;
    worker w;
    (void)set_run("a token");
    begin(&w, 1, 2, 0.5);
    end(&w);
    expect_words(&w, LS_E_COMM, "rank 1 could not connect to rank 0 within");
    expect_words(&w, LS_E_COMM, "refused");
}

/* A program listens, accepts and sends nothing; less time than a handshake has. */
static void a_port_that_has_not_answered_yet_is_named_with_a_reason(void **state)
{
    (void)state;
    worker w;
    const int held = hold_port(set_run("a token"));
    begin(&w, 1, 2, 2);
    end(&w);
    expect_words(&w, LS_E_COMM, "it has not finished the handshake)");
    close(held);
}

/* An address of this host, as text: of IPv4 its loopback if there is no other; of IPv6 a link-local one; false: there is none. */
static bool own_address(int family, char *text, size_t room)
{
    struct ifaddrs *all = NULL;
    bool found = false;
    snprintf(text, room, "127.0.0.1");
    if (getifaddrs(&all)) return family == AF_INET;
    for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
        const bool usable = i->ifa_addr && i->ifa_addr->sa_family == family && (i->ifa_flags & IFF_UP) &&
                            !(i->ifa_flags & IFF_LOOPBACK);
        if (!usable) continue;
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)i->ifa_addr;
        if (family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) continue;
        found = !getnameinfo(i->ifa_addr, family == AF_INET ? sizeof(struct sockaddr_in) : sizeof *v6, text,
                             (socklen_t)room, NULL, 0, NI_NUMERICHOST);
    }
    freeifaddrs(all);
    return found || family == AF_INET;
}

/* Three workers at an address of this host: ranks 1 and 2 connect by what rank 0 says. */
static void meet_at(int family)
{
    char address[128];
    worker w[3];
    if (!own_address(family, address, sizeof address)) {
        print_message("skipped: no network interface of this machine has a link-local IPv6 address (fe80::)\n");
        skip();
    }
    (void)set_run("a token");
    setenv("MASTER_ADDR", address, 1);
    for (int r = 0; r < 3; r++) begin(&w[r], r, 3, 20);
    for (int r = 0; r < 3; r++) {
        end(&w[r]);
        if (w[r].st != LS_OK) fail_msg("rank %d at %s: %s", r, address, w[r].words);
    }
    struct sockaddr_storage peer = {0};
    socklen_t n = sizeof peer;
    assert_int_equal(getpeername(w[2].links.fd[1], (struct sockaddr *)&peer, &n), 0);
    assert_int_equal(peer.ss_family, family);
    for (int r = 0; r < 3; r++) tcp_links_fini(&w[r].links);
}

/* Rank 0 accepts them at a socket for both families, which gives IPv4 addresses as ::ffff:a.b.c.d. */
static void workers_at_an_ipv4_address_connect_over_ipv4(void **state)
{
    (void)state;
    meet_at(AF_INET);
}

static void workers_at_a_link_local_address_use_the_interface_of_rank_0(void **state)
{
    (void)state;
    meet_at(AF_INET6);
}

static void a_worker_that_leaves_during_the_start_ends_it_at_once(void **state)
{
    (void)state;
    worker w[2];
    (void)set_run("a token");
    begin(&w[0], 0, 3, 60);
    begin(&w[1], 1, 3, 2); /* it waits for rank 2 no longer than this and the time for rank 0's note */
    end(&w[1]);
    end(&w[0]);
    expect_words(&w[0], LS_E_COMM, "rank 1");
    expect_words(&w[0], LS_E_COMM, "exited during start-up");
    assert_true(w[0].took < 10);
}

static void receive_all(int fd, void *p, size_t n)
{
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = 10}, sizeof(struct timeval));
    assert_int_equal(recv(fd, p, n, MSG_WAITALL), n);
}

/* A program between the workers passes rank 0's challenge on, keeps the answer of a worker that knows the token, and sends it again on a
 * connection of its own. */
static void an_answer_to_another_challenge_is_refused(void **state)
{
    (void)state;
    uint8_t challenge[2][8 + MEET_KEY], answer[8 + MEET_KEY + sizeof(meet_hello) + MEET_KEY], verdict[12];
    char text[16];
    int32_t status;
    worker w[2];
    const int port = set_run("a token"), between = free_port(), door = hold_port(between);
    int first;
    begin(&w[0], 0, 2, 30);
    while ((first = knock(port)) < 0) nap(0.02);
    receive_all(first, challenge[0], sizeof challenge[0]);
    snprintf(text, sizeof text, "%d", between);
    setenv("MASTER_PORT", text, 1);
    begin(&w[1], 1, 2, 4);
    const int victim = accept(door, NULL, NULL);
    assert_int_equal(send(victim, challenge[0], sizeof challenge[0], MSG_NOSIGNAL), sizeof challenge[0]);
    receive_all(victim, answer, sizeof answer);
    const int second = knock(port);
    receive_all(second, challenge[1], sizeof challenge[1]);
    assert_memory_not_equal(challenge[0], challenge[1], sizeof challenge[0]);
    assert_int_equal(send(second, answer, sizeof answer, MSG_NOSIGNAL), sizeof answer);
    receive_all(second, verdict, sizeof verdict);
    memcpy(&status, verdict + 8, sizeof status);
    assert_int_equal(status, -1); /* it does not prove the token */
    close(first);
    close(second);
    close(victim);
    close(door);
    end(&w[1]);
    expect_words(&w[1], LS_E_COMM, "rank 1 could not connect to rank 0");
    snprintf(text, sizeof text, "%d", port);
    setenv("MASTER_PORT", text, 1);
    begin(&w[1], 1, 2, 30); /* rank 1 can still join */
    expect_ok(w, 2);
}

/* ---- messages ---- */

typedef struct pair {
    void *net[2];
    ls_net_info info[2];
} pair;

static void open_pair(pair *p)
{
    worker w[2];
    (void)set_run("a token");
    begin(&w[0], 0, 2, 30);
    begin(&w[1], 1, 2, 30);
    for (int r = 0; r < 2; r++) {
        end(&w[r]);
        if (w[r].st != LS_OK) fail_msg("rank %d: %s", r, w[r].words);
        assert_int_equal(tcp_open(&w[r].links, 0, &p->net[r], &p->info[r]), LS_OK);
        assert_int_equal(p->info[r].host[1], 0); /* the same host */
    }
}

static void *stop_clean(void *net)
{
    tcp_transport.stop(net, true);
    return NULL;
}

static void close_pair(pair *p)
{
    pthread_t t;
    pthread_create(&t, NULL, stop_clean, p->net[1]);
    tcp_transport.stop(p->net[0], true);
    pthread_join(t, NULL);
}

static void messages_of_a_tag_arrive_in_order_and_whole(void **state)
{
    (void)state;
    enum { N = 60 };
    static ls_net_op out[N], in[N];
    ls_net_op *list[2 * N];
    static const int size[] = {0, 1, 15, 4000, TCP_EAGER, TCP_EAGER + 1, 300000, 1 << 20};
    pair p;
    open_pair(&p);
    for (int i = 0; i < N; i++) {
        const int n = size[ls_rng_u64(3, (uint64_t)i) % N_OF(size)], tag = 4 + i % 3;
        out[i] = (ls_net_op){.buf = ls_alloc((size_t)n), .nbytes = n, .peer = 1, .tag = tag, .send = true};
        in[i] = (ls_net_op){.buf = ls_alloc((size_t)n), .nbytes = n, .peer = 0, .tag = tag};
        for (int k = 0; k < n; k++) ((uint8_t *)out[i].buf)[k] = (uint8_t)(i * 7 + k);
        list[i] = &out[i];
        list[N + i] = &in[i];
        tcp_transport.post(p.net[0], &out[i]);
    }
    nap(0.05);                         /* small ones arrive before their receives */
    for (int tag = 2; tag >= 0; tag--) /* tags in another order than they were sent, each in its own */
        for (int i = tag; i < N; i += 3) tcp_transport.post(p.net[1], &in[i]);
    assert_true(tcp_transport.wait(p.net[1], list + N, N, 30));
    assert_true(tcp_transport.wait(p.net[0], list, N, 30));
    for (int i = 0; i < N; i++) {
        assert_false(in[i].failed || out[i].failed);
        assert_int_equal(in[i].got, in[i].nbytes);
        if (memcmp(in[i].buf, out[i].buf, (size_t)in[i].nbytes) != 0) fail_msg("message %d has other bytes", i);
        ls_free(in[i].buf);
        ls_free(out[i].buf);
    }
    close_pair(&p);
}

/* A peer that is a socket of the test, which sends messages in pieces: frame = { bytes, tag, kind, 0 }, then the payload. */
static void send_piece(int fd, const void *data, size_t n)
{
    assert_int_equal(write(fd, data, n), n);
    nap(0.03); /* the transport reads it alone */
}

static void a_receive_that_is_posted_in_the_middle_of_a_message_gets_it(void **state)
{
    (void)state;
    enum { DATA = 0x4c53, TAG = 9 };
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    tcp_links links = {.rank = 0,
                       .size = 2,
                       .fd = ls_alloc(2 * sizeof(int)),
                       .host = ls_alloc(2 * sizeof(int)),
                       .name = ls_alloc(2 * sizeof *links.name)};
    links.fd[0] = -1;
    links.fd[1] = ends[0];
    void *net;
    ls_net_info info;
    assert_int_equal(tcp_open(&links, 0, &net, &info), LS_OK);
    char got[3][8] = {"", "", ""};
    ls_net_op in[3], *list[3];
    for (int i = 0; i < 3; i++) {
        in[i] = (ls_net_op){.buf = got[i], .nbytes = 8, .peer = 1, .tag = TAG};
        list[i] = &in[i];
    }
    const uint32_t head[4] = {8, TAG, DATA, 0};
    send_piece(ends[1], head, sizeof head); /* no receive is posted yet: the message is kept */
    send_piece(ends[1], "fir", 3);
    tcp_transport.post(net, &in[0]);
    nap(0.03);
    send_piece(ends[1], "st of", 5);
    assert_true(tcp_transport.wait(net, list, 1, 10));
    assert_memory_equal(got[0], "first of", 8);
    send_piece(ends[1], head, sizeof head); /* two receives for one that is half here: the first gets it */
    tcp_transport.post(net, &in[1]);
    tcp_transport.post(net, &in[2]);
    nap(0.03);
    send_piece(ends[1], "second  ", 8);
    send_piece(ends[1], head, sizeof head);
    send_piece(ends[1], "third   ", 8);
    assert_true(tcp_transport.wait(net, list + 1, 2, 10));
    assert_memory_equal(got[1], "second  ", 8);
    assert_memory_equal(got[2], "third   ", 8);
    tcp_transport.stop(net, false);
    close(ends[1]);
}

static void a_large_message_waits_for_its_receive_and_blocks_no_other(void **state)
{
    (void)state;
    const int n = 8 << 20;
    char *big = ls_alloc((size_t)n), *room = ls_alloc((size_t)n), small[2] = {'x', 0};
    ls_net_op large = {.buf = big, .nbytes = n, .peer = 1, .tag = 4, .send = true}, *a = &large;
    ls_net_op little = {.buf = &small[0], .nbytes = 1, .peer = 1, .tag = 5, .send = true};
    ls_net_op in = {.buf = &small[1], .nbytes = 1, .peer = 0, .tag = 5}, *b = &in;
    ls_net_op late = {.buf = room, .nbytes = n, .peer = 0, .tag = 4}, *c = &late;
    pair p;
    open_pair(&p);
    tcp_transport.post(p.net[0], &large);
    tcp_transport.post(p.net[0], &little);
    tcp_transport.post(p.net[1], &in);
    assert_true(tcp_transport.wait(p.net[1], &b, 1, 30));
    assert_int_equal(small[1], 'x');
    assert_false(tcp_transport.wait(p.net[0], &a, 1, 0.1));
    tcp_transport.post(p.net[1], &late);
    assert_true(tcp_transport.wait(p.net[1], &c, 1, 30) && tcp_transport.wait(p.net[0], &a, 1, 30));
    close_pair(&p);
    ls_free(big);
    ls_free(room);
}

static _Atomic int lost_rank = -1;
static void note_lost(ls_net_op *op)
{
    if (op->failed) lost_rank = op->from;
}

static void a_lost_worker_fails_what_waits_for_it(void **state)
{
    (void)state;
    char byte[2], words[256];
    ls_net_op in = {.buf = &byte[0], .nbytes = 1, .peer = 1, .tag = 4}, *a = &in;
    ls_net_op anyone = {.buf = &byte[1], .nbytes = 1, .peer = -1, .tag = 0, .from = -1, .on_done = note_lost};
    ls_net_op later = {.buf = &byte[0], .nbytes = 1, .peer = 1, .tag = 4, .send = true}, *b = &later;
    pair p;
    open_pair(&p);
    tcp_transport.post(p.net[0], &anyone);
    tcp_transport.post(p.net[0], &in);
    assert_false(tcp_transport.wait(p.net[0], &a, 1, 0.05));
    tcp_transport.stop(p.net[1], false); /* as a process that was killed: without a word */
    assert_true(tcp_transport.wait(p.net[0], &a, 1, 10));
    assert_true(in.failed);
    assert_int_equal(lost_rank, 1);
    tcp_transport.trouble(p.net[0], words, sizeof words);
    assert_non_null(strstr(words, "the connection with rank 1"));
    tcp_transport.post(p.net[0], &later);
    assert_true(tcp_transport.wait(p.net[0], &b, 1, 10));
    assert_true(later.failed);
    tcp_transport.stop(p.net[0], false);
}

static void a_message_that_is_too_long_fails_its_receive_and_nothing_is_overwritten(void **state)
{
    (void)state;
    enum { SENT = 4000, ROOM = 4 };
    for (int late = 0; late < 2; late++) { /* the receive is posted before or after the message arrives */
        char *out = ls_alloc(SENT), *in = ls_alloc(SENT), words[256], byte[2] = {'x', 0};
        memset(out, 'x', SENT);
        ls_net_op send = {.buf = out, .nbytes = SENT, .peer = 1, .tag = 4, .send = true}, *a = &send;
        ls_net_op receive = {.buf = in, .nbytes = ROOM, .peer = 0, .tag = 4}, *b = &receive;
        ls_net_op next = {.buf = &byte[0], .nbytes = 1, .peer = 1, .tag = 5, .send = true};
        ls_net_op last = {.buf = &byte[1], .nbytes = 1, .peer = 0, .tag = 5}, *c = &last;
        pair p;
        open_pair(&p);
        if (!late) tcp_transport.post(p.net[1], &receive);
        if (!late) nap(0.05);
        tcp_transport.post(p.net[0], &send);
        tcp_transport.post(p.net[0], &next);
        assert_true(tcp_transport.wait(p.net[0], &a, 1, 30));
        tcp_transport.post(p.net[1], &last);
        assert_true(tcp_transport.wait(p.net[1], &c, 1, 30)); /* it was sent after the long one */
        if (late) tcp_transport.post(p.net[1], &receive);
        assert_true(tcp_transport.wait(p.net[1], &b, 1, 30));
        assert_true(receive.failed && !last.failed && byte[1] == 'x');
        tcp_transport.trouble(p.net[1], words, sizeof words);
        assert_string_equal(words, "rank 0 sent 4000 bytes where 4 were expected");
        for (int i = 0; i < SENT; i++) assert_int_equal(in[i], 0);
        close_pair(&p);
        ls_free(out);
        ls_free(in);
    }
}

static void a_worker_that_has_finished_fails_receives_from_it_at_once(void **state)
{
    (void)state;
    char byte[2], words[256];
    ls_net_op before = {.buf = &byte[0], .nbytes = 1, .peer = 1, .tag = 4}, *a = &before;
    ls_net_op after = {.buf = &byte[1], .nbytes = 1, .peer = 1, .tag = 4}, *b = &after;
    pthread_t t;
    pair p;
    open_pair(&p);
    tcp_transport.post(p.net[0], &before);
    assert_false(tcp_transport.wait(p.net[0], &a, 1, 0.05));
    pthread_create(&t, NULL, stop_clean, p.net[1]);
    assert_true(tcp_transport.wait(p.net[0], &a, 1, 5));
    tcp_transport.post(p.net[0], &after);
    assert_true(tcp_transport.wait(p.net[0], &b, 1, 5));
    assert_true(before.failed && after.failed);
    tcp_transport.trouble(p.net[0], words, sizeof words);
    assert_non_null(strstr(words, "the connection with rank 1"));
    assert_non_null(strstr(words, "it has finished"));
    tcp_transport.stop(p.net[0], true);
    pthread_join(t, NULL);
}

/* ---- the memory of a host ---- */

static void shared_memory_with_wrong_numbers_is_refused(void **state)
{
    (void)state;
    static const size_t field[] = {offsetof(ls_local_world, magic),        offsetof(ls_local_world, size),
                                   offsetof(ls_local_world, arena_nbytes), offsetof(ls_local_world, map_nbytes),
                                   offsetof(ls_local_world, control_off),  offsetof(ls_local_world, mailbox_off),
                                   offsetof(ls_local_world, arena_off)};
    static const int64_t wild[] = {0, 1, -1, 4097, INT64_MAX, INT64_MIN, (int64_t)1 << 40};
    ls_local_world *w = NULL, *again = NULL;
    const int fd = local_memfd();
    assert_int_equal(ls_local_world_format(fd, 2, (size_t)4 << 20, &w), LS_OK);
    assert_int_equal(ls_local_world_open(fd, 2, &again), LS_OK);
    ls_local_world_destroy(&again);
    assert_int_equal(ls_local_world_open(fd, 3, &again), LS_E_COMM);
    for (size_t i = 0; i < N_OF(field); i++)
        for (size_t k = 0; k < N_OF(wild); k++) {
            char *at = (char *)w + field[i];
            const size_t n = field[i] == offsetof(ls_local_world, size) ? sizeof(int) : sizeof(size_t);
            char before[8];
            memcpy(before, at, n);
            memcpy(at, &wild[k], n);
            const bool same = !memcmp(before, at, n);
            const ls_status st = ls_local_world_open(fd, 2, &again);
            memcpy(at, before, n);
            if (!same && st != LS_E_COMM) fail_msg("field %zu with %lld is accepted", i, (long long)wild[k]);
        }
    assert_int_equal(ftruncate(fd, 4096), -1); /* its size is sealed */
    ls_local_world_destroy(&w);
    close(fd);
}

static void shared_memory_whose_size_can_change_is_refused(void **state)
{
    (void)state;
    ls_local_world *w = NULL, *again = NULL;
    const int sealed = local_memfd(), open_one = memfd_create("test", MFD_CLOEXEC);
    assert_int_equal(ls_local_world_format(sealed, 2, (size_t)4 << 20, &w), LS_OK);
    assert_int_equal(ftruncate(open_one, (off_t)w->map_nbytes), 0);
    assert_int_equal(pwrite(open_one, w, sizeof *w, 0), sizeof *w);
    assert_int_equal(ls_local_world_open(open_one, 2, &again), LS_E_COMM);
    assert_non_null(strstr(ls_err_words(), "can still be changed"));
    ls_local_world_destroy(&w);
    close(sealed);
    close(open_one);
}

int main(void)
{
    unsetenv("LOCKSTEP_HOST_ID");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_meet_whatever_their_order),
        cmocka_unit_test(a_thousand_random_byte_strings_change_nothing),
        cmocka_unit_test(a_port_that_another_program_holds_is_passed_over),
        cmocka_unit_test(a_worker_without_the_token_is_refused),
        cmocka_unit_test(two_runs_with_one_port_and_two_tokens_do_not_mix),
        cmocka_unit_test(a_rank_that_is_given_twice_is_refused),
        cmocka_unit_test(those_that_are_missing_are_named_within_the_limit),
        cmocka_unit_test(without_rank_0_the_others_say_so),
        cmocka_unit_test(a_port_that_has_not_answered_yet_is_named_with_a_reason),
        cmocka_unit_test(workers_at_an_ipv4_address_connect_over_ipv4),
        cmocka_unit_test(workers_at_a_link_local_address_use_the_interface_of_rank_0),
        cmocka_unit_test(a_worker_that_leaves_during_the_start_ends_it_at_once),
        cmocka_unit_test(an_answer_to_another_challenge_is_refused),
        cmocka_unit_test(messages_of_a_tag_arrive_in_order_and_whole),
        cmocka_unit_test(a_receive_that_is_posted_in_the_middle_of_a_message_gets_it),
        cmocka_unit_test(a_large_message_waits_for_its_receive_and_blocks_no_other),
        cmocka_unit_test(a_lost_worker_fails_what_waits_for_it),
        cmocka_unit_test(a_message_that_is_too_long_fails_its_receive_and_nothing_is_overwritten),
        cmocka_unit_test(a_worker_that_has_finished_fails_receives_from_it_at_once),
        cmocka_unit_test(shared_memory_with_wrong_numbers_is_refused),
        cmocka_unit_test(shared_memory_whose_size_can_change_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
