#include "serve/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

static bool is_any(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr == htonl(INADDR_ANY);
    return a->sa_family == AF_INET6 &&
           IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

/* A listening socket, or -1 with errno. */
static int open_socket(const struct addrinfo *a, bool both)
{
    const int on = 1, only6 = !both;
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->ai_family == AF_INET6) (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only6, sizeof only6);
    if (!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, 64)) return fd;
    const int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static struct addrinfo *resolve(const char *host, int64_t port, int *error)
{
    char service[16];
    struct addrinfo hint = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    snprintf(service, sizeof service, "%lld", (long long)port);
    *error = getaddrinfo(host, service, &hint, &found);
    return *error ? NULL : found;
}

/* One port. *why: the errno of a failure; EADDRINUSE: others may be tried. */
static ls_status try_port(const char *address, int64_t port, ls_listener *l, int *why)
{
    int error = 0;
    *why = 0;
    struct addrinfo *a = resolve(address ? address : "127.0.0.1", port, &error);
    if (!a) return ls_fail(LS_E_CONFIG, "%s: not an address of this machine: %s", address, gai_strerror(error));
    l->loopback = is_loopback(a->ai_addr);
    const bool any = is_any(a->ai_addr);
    l->fd[0] = open_socket(a, true);
    *why = errno;
    freeaddrinfo(a);
    if (l->fd[0] < 0)
        return ls_fail(LS_E_CONFIG, "cannot listen on %s port %lld: %s", address ? address : "127.0.0.1",
                       (long long)port, strerror(*why));
    l->n = 1;
    l->port = (int)port;
    if (any && !gethostname(l->host, sizeof l->host - 1)) l->host[sizeof l->host - 1] = 0;
    else snprintf(l->host, sizeof l->host, "%s", address ? address : "127.0.0.1");
    if (address) return LS_OK;
    a = resolve("::1", port, &error); /* browsers may resolve localhost to it */
    if (a && (l->fd[1] = open_socket(a, false)) >= 0) l->n = 2;
    if (a) freeaddrinfo(a);
    return LS_OK;
}

static ls_status make_token(char token[LS_TOKEN_CHARS + 1])
{
    unsigned char bytes[LS_TOKEN_CHARS / 2];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return ls_fail(LS_E_IO, "no random bytes for a token: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++) snprintf(token + 2 * i, 3, "%02x", bytes[i]);
    return LS_OK;
}

ls_status ls_listen(const char *address, int64_t port, ls_listener *out)
{
    ls_listener l = {.fd = {-1, -1}};
    ls_status st = LS_OK;
    int why = 0;
    for (int64_t p = port ? port : LS_LISTEN_PORT, last = port ? port : p + LS_LISTEN_TRIES - 1; p <= last; p++) {
        st = try_port(address, p, &l, &why);
        if (st == LS_OK || why != EADDRINUSE) break;
    }
    if (st != LS_OK && why == EADDRINUSE)
        return port
                   ? ls_fail(LS_E_CONFIG,
                             "port %lld is in use; choose another one, or leave the port out to use the first free one",
                             (long long)port)
                   : ls_fail(LS_E_CONFIG, "ports %d to %d are in use; choose one", LS_LISTEN_PORT,
                             LS_LISTEN_PORT + LS_LISTEN_TRIES - 1);
    LS_TRY(st);
    if (!l.loopback) st = make_token(l.token);
    if (st == LS_OK) *out = l;
    else ls_listener_close(&l);
    return st;
}

void ls_listen_take(ls_listener *out, int n, int first_fd, const char *address, const char *token)
{
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof a;
    *out = (ls_listener){.fd = {first_fd, n > 1 ? first_fd + 1 : -1}, .n = n};
    if (!getsockname(first_fd, (struct sockaddr *)(void *)&a, &len))
        out->loopback = is_loopback((struct sockaddr *)(void *)&a);
    if (a.ss_family == AF_INET) out->port = ntohs(((struct sockaddr_in *)(void *)&a)->sin_port);
    if (a.ss_family == AF_INET6) out->port = ntohs(((struct sockaddr_in6 *)(void *)&a)->sin6_port);
    snprintf(out->host, sizeof out->host, "%s", address ? address : "");
    snprintf(out->token, sizeof out->token, "%s", token ? token : "");
}

void ls_listener_close(ls_listener *l)
{
    for (int i = 0; i < l->n; i++) close(l->fd[i]);
    l->n = 0;
}

void ls_listener_url(const ls_listener *l, ls_str *out)
{
    const bool v6 = strchr(l->host, ':');
    ls_str_addf(out, "http://%s%s%s:%d/", v6 ? "[" : "", l->host, v6 ? "]" : "", l->port);
    if (*l->token) ls_str_addf(out, "?token=%s", l->token);
}

/* A name that is an address of loopback: no other site can own it. */
static bool is_loopback_text(const char *name)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, name, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, name, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool ls_listener_is_host(const ls_listener *l, const char *header)
{
    char name[sizeof l->host];
    const bool bracket = header[0] == '[';
    const char *begin = header + bracket;
    const size_t n = strcspn(begin, bracket ? "]" : ":");
    if (n >= sizeof name || (bracket && begin[n] != ']')) return false;
    memcpy(name, begin, n);
    name[n] = 0;
    const char *port = begin + n + bracket;
    if (*port && (*port != ':' || port[1 + strspn(port + 1, "0123456789")])) return false;
    if (bracket != (strchr(name, ':') != NULL)) return false;
    return !strcasecmp(name, "localhost") || (*l->host && !strcasecmp(name, l->host)) || is_loopback_text(name);
}

bool ls_token_equal(const char *token, const char *given)
{
    unsigned char differs = 0;
    const size_t n = given ? strlen(given) : 0;
    for (size_t i = 0; i < LS_TOKEN_CHARS; i++) differs |= (unsigned char)(token[i] ^ (i < n ? given[i] : 0));
    return n == LS_TOKEN_CHARS && !differs;
}
