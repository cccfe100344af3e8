#include "serve/server.h"

#include "core/clock.h"
#include "core/mem.h"
#include "serve/answers.h"

#include <stdio.h>
#include <string.h>

#ifndef LS_MICROHTTPD

ls_status ls_server_check(void)
{
    return ls_fail(LS_E_UNSUPPORTED,
                   "this build has no HTTP server; install libmicrohttpd-dev and build again, or use `lockstep watch`");
}

ls_status ls_server_run(ls_listener *l, ls_live_set *set, ls_server_stop *stop, void *ctx)
{
    (void)set, (void)stop, (void)ctx;
    ls_listener_close(l);
    return ls_server_check();
}

#else

#include <microhttpd.h>
#include <poll.h>
#include <sys/socket.h>

#define KEEP 0.5 /* seconds for which an answer is used again */

extern const unsigned char ls_serve_page[]; /* made of page.html by CMake */
extern const size_t ls_serve_page_size;

typedef struct client { /* one connection */
    struct client *next, **at;
    int fd;
    double since; /* the connection, or the end of its last request */
} client;

typedef struct kept { /* an answer */
    char key[512];
    ls_str body;
    double made;
} kept;

typedef struct server {
    const ls_listener *l;
    ls_live_set *set;
    struct MHD_Daemon *daemon[2];
    client *clients;
    kept kept[8];
    double last_request;
} server;

/* ---- connections ---- */

static void see_connection(void *cls, struct MHD_Connection *c, void **context,
                           enum MHD_ConnectionNotificationCode what)
{
    server *s = cls;
    client *k = *context;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (!k) return;
        *k->at = k->next;
        if (k->next) k->next->at = k->at;
        ls_free(k);
        *context = NULL;
        return;
    }
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    k = info ? ls_alloc(sizeof *k) : NULL;
    if (!k) return; /* its time limit is then that of the library */
    *k = (client){.next = s->clients, .at = &s->clients, .fd = info->connect_fd, .since = ls_now()};
    if (k->next) k->next->at = &k->next;
    s->clients = k;
    *context = k;
}

static void see_completed(void *cls, struct MHD_Connection *c, void **con_cls, enum MHD_RequestTerminationCode code)
{
    (void)cls, (void)con_cls, (void)code;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    client *k = info ? info->socket_context : NULL;
    if (k) k->since = ls_now();
}

/* The library's own limit begins again with every byte. */
static void end_slow_clients(server *s)
{
    const double now = ls_now();
    for (client *k = s->clients; k; k = k->next)
        if (now - k->since > LS_SERVER_PATIENCE) (void)shutdown(k->fd, SHUT_RDWR);
}

/* ---- answers ---- */

static enum MHD_Result send_body(server *s, struct MHD_Connection *c, unsigned code, const char *type, const void *data,
                                 size_t n, enum MHD_ResponseMemoryMode mode)
{
    static const char *const header[][2] = {
        {"Cache-Control", "no-store"},
        {"X-Content-Type-Options", "nosniff"},
        {"X-Frame-Options", "DENY"},
        {"Referrer-Policy", "no-referrer"},
        {"Content-Security-Policy",
         "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
         "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}};
    struct MHD_Response *r = MHD_create_response_from_buffer(n, (void *)(uintptr_t)data, mode);
    if (!r) return MHD_NO;
    (void)MHD_add_response_header(r, "Content-Type", type);
    for (size_t i = 0; i < sizeof header / sizeof *header; i++)
        (void)MHD_add_response_header(r, header[i][0], header[i][1]);
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED) (void)MHD_add_response_header(r, "Allow", "GET, HEAD");
    if (code == MHD_HTTP_UNAUTHORIZED) (void)MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (*s->l->token && code < 300) { /* so that the page's own requests need no token in their address */
        char cookie[128];
        snprintf(cookie, sizeof cookie, "lockstep_%d=%s; Path=/; HttpOnly; SameSite=Strict", s->l->port, s->l->token);
        (void)MHD_add_response_header(r, "Set-Cookie", cookie);
    }
    const enum MHD_Result done = MHD_queue_response(c, code, r);
    MHD_destroy_response(r);
    return done;
}

static enum MHD_Result send_words(server *s, struct MHD_Connection *c, unsigned code, const char *words)
{
    return send_body(s, c, code, "text/plain; charset=utf-8", words, strlen(words), MHD_RESPMEM_PERSISTENT);
}

/* The answer that was made for this key a moment ago, or an empty one to fill: the oldest. */
static kept *keep(server *s, const char *key, bool *fresh)
{
    kept *oldest = &s->kept[0];
    const double now = ls_now();
    *fresh = false;
    for (size_t i = 0; i < sizeof s->kept / sizeof *s->kept; i++) {
        kept *k = &s->kept[i];
        if (k->body.len && !strcmp(k->key, key)) {
            *fresh = now - k->made < KEEP;
            oldest = k;
            break;
        }
        if (k->made < oldest->made) oldest = k;
    }
    if (*fresh) return oldest;
    oldest->body.len = 0;
    oldest->body.failed = false;
    oldest->made = now;
    snprintf(oldest->key, sizeof oldest->key, "%s", key);
    return oldest;
}

static int64_t number(struct MHD_Connection *c, const char *name)
{
    int64_t n;
    const char *text = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, name);
    return text && ls_parse_i64(text, &n) ? n : -1;
}

static enum MHD_Result send_kept(server *s, struct MHD_Connection *c, kept *k, const char *type, ls_status st)
{
    if (st != LS_OK || k->body.failed || !k->body.data) {
        k->body.len = 0;
        ls_err_clear();
        return send_words(s, c, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory\n");
    }
    return send_body(s, c, MHD_HTTP_OK, type, k->body.data, k->body.len, MHD_RESPMEM_MUST_COPY);
}

static enum MHD_Result send_run(server *s, struct MHD_Connection *c)
{
    char key[sizeof s->kept[0].key];
    bool fresh;
    ls_live_run *r = NULL;
    const char *id = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "id");
    const int64_t generation = number(c, "generation"), from = number(c, "from");
    if (!id || !*id)
        return send_words(s, c, MHD_HTTP_BAD_REQUEST, "id is missing: /api/run?id=NAME; /api/runs lists the names\n");
    const int n = snprintf(key, sizeof key, "run %lld %lld %s", (long long)generation, (long long)from, id);
    if (n < 0 || (size_t)n >= sizeof key) return send_words(s, c, MHD_HTTP_NOT_FOUND, "no such run\n");
    kept *k = keep(s, key, &fresh);
    ls_status st = fresh ? LS_OK : ls_live_set_ask(s->set, id, &r);
    if (st == LS_OK && !fresh && !r)
        return send_words(s, c, MHD_HTTP_NOT_FOUND, "no such run; /api/runs lists the names\n");
    if (st == LS_OK && r) ls_answer_run(r, generation, from, &k->body);
    return send_kept(s, c, k, "application/json", st);
}

typedef void set_answer(const ls_live_set *s, ls_str *out);

static enum MHD_Result send_set(server *s, struct MHD_Connection *c, const char *key, const char *type,
                                set_answer *make)
{
    bool fresh;
    kept *k = keep(s, key, &fresh);
    const ls_status st = fresh ? LS_OK : ls_live_set_look(s->set);
    if (st == LS_OK && !fresh) make(s->set, &k->body);
    return send_kept(s, c, k, type, st);
}

/* ---- who may ask ---- */

static bool has_token(const server *s, struct MHD_Connection *c)
{
    static const char bearer[] = "Bearer ";
    char name[32];
    if (!*s->l->token) return true;
    snprintf(name, sizeof name, "lockstep_%d", s->l->port);
    const char *h = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    return ls_token_equal(s->l->token, MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "token")) ||
           ls_token_equal(s->l->token, MHD_lookup_connection_value(c, MHD_COOKIE_KIND, name)) ||
           (h && !strncmp(h, bearer, sizeof bearer - 1) && ls_token_equal(s->l->token, h + sizeof bearer - 1));
}

static bool is_our_name(const server *s, struct MHD_Connection *c)
{
    const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host");
    return *s->l->token || !host || ls_listener_is_host(s->l, host);
}

static enum MHD_Result route(server *s, struct MHD_Connection *c, const char *url)
{
    if (!is_our_name(s, c))
        return send_words(
            s, c, MHD_HTTP_FORBIDDEN,
            "this server answers for localhost and addresses of loopback only: use the address that the program printed\n");
    if (!has_token(s, c))
        return send_words(s, c, MHD_HTTP_UNAUTHORIZED,
                          "a token is needed: use the address that the program printed (?token=...)\n");
    s->last_request = ls_now();
    if (!strcmp(url, "/"))
        return send_body(s, c, MHD_HTTP_OK, "text/html; charset=utf-8", ls_serve_page, ls_serve_page_size,
                         MHD_RESPMEM_PERSISTENT);
    if (!strcmp(url, "/api/runs")) return send_set(s, c, "runs", "application/json", ls_answer_runs);
    if (!strcmp(url, "/api/run")) return send_run(s, c);
    if (!strcmp(url, "/metrics"))
        return send_set(s, c, "metrics", "text/plain; version=0.0.4; charset=utf-8", ls_answer_prometheus);
    return send_words(s, c, MHD_HTTP_NOT_FOUND, "no such page; there are /, /api/runs, /api/run?id= and /metrics\n");
}

static enum MHD_Result handle(void *cls, struct MHD_Connection *c, const char *url, const char *method,
                              const char *version, const char *body, size_t *n_body, void **seen)
{
    (void)version, (void)body;
    server *s = cls;
    const bool get = !strcmp(method, MHD_HTTP_METHOD_GET) || !strcmp(method, MHD_HTTP_METHOD_HEAD);
    if (!*seen) { /* the headers are read */
        *seen = s;
        const char *length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Length");
        if (!get) return send_words(s, c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        if ((length && strcmp(length, "0") != 0) ||
            MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Transfer-Encoding"))
            return send_words(s, c, MHD_HTTP_BAD_REQUEST, "a request has no body here\n");
        return MHD_YES;
    }
    if (*n_body) {
        *n_body = 0;
        return MHD_YES;
    }
    return route(s, c, url);
}

/* ---- the loop ---- */

static struct MHD_Daemon *start(server *s, int fd)
{
    return MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, handle, s, MHD_OPTION_LISTEN_SOCKET, fd,
                            MHD_OPTION_CONNECTION_LIMIT, (unsigned)LS_SERVER_CLIENTS, MHD_OPTION_CONNECTION_TIMEOUT,
                            (unsigned)LS_SERVER_PATIENCE, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)LS_SERVER_REQUEST,
                            MHD_OPTION_NOTIFY_CONNECTION, see_connection, s, MHD_OPTION_NOTIFY_COMPLETED, see_completed,
                            s, MHD_OPTION_END);
}

static ls_status serve(server *s, int n, ls_server_stop *stop, void *ctx)
{
    struct pollfd wait[2];
    double swept = 0;
    bool more = false;
    for (int i = 0; i < n; i++) {
        const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon[i], MHD_DAEMON_INFO_EPOLL_FD);
        if (!info) return ls_fail(LS_E_INTERNAL, "the HTTP library has no event descriptor");
        wait[i] = (struct pollfd){.fd = info->epoll_fd, .events = POLLIN};
    }
    while (!stop(ctx, ls_now() - s->last_request)) {
        int limit = more ? 0 : 250;
        for (int i = 0; i < n; i++) {
            MHD_UNSIGNED_LONG_LONG ms; /* 0: a client has sent more than was read */
            if (MHD_get_timeout(s->daemon[i], &ms) == MHD_YES && ms < (MHD_UNSIGNED_LONG_LONG)limit) limit = (int)ms;
        }
        (void)poll(wait, (nfds_t)n, limit);
        for (int i = 0; i < n; i++) (void)MHD_run(s->daemon[i]);
        if (ls_now() - swept > 1) {
            end_slow_clients(s);
            swept = ls_now();
        }
        LS_TRY(ls_live_set_read(s->set, &more));
    }
    return LS_OK;
}

ls_status ls_server_check(void)
{
    return LS_OK;
}

ls_status ls_server_run(ls_listener *l, ls_live_set *set, ls_server_stop *stop, void *ctx)
{
    server s = {.l = l, .set = set};
    ls_status st = LS_OK;
    for (int i = 0; i < l->n && st == LS_OK; i++)
        if (!(s.daemon[i] = start(&s, l->fd[i]))) st = ls_fail(LS_E_IO, "the HTTP library cannot use port %d", l->port);
    if (st == LS_OK) st = serve(&s, l->n, stop, ctx);
    for (int i = 0; i < l->n; i++) {
        if (s.daemon[i]) MHD_stop_daemon(s.daemon[i]); /* closes the socket */
        else (void)shutdown(l->fd[i], SHUT_RDWR);
    }
    l->n = 0;
    for (size_t i = 0; i < sizeof s.kept / sizeof *s.kept; i++) ls_str_fini(&s.kept[i].body);
    return st;
}

#endif
