/* listen.h - the sockets of the server and the token that protects them.
 *
 * Without an address: 127.0.0.1 and, where the machine has it, ::1 on the same port. An address that other machines can reach needs a token,
 * which is made here. */
#ifndef LS_SERVE_LISTEN_H
#define LS_SERVE_LISTEN_H

#include "core/err.h"
#include "core/str.h"

#include <stdint.h>

enum { LS_LISTEN_PORT = 7007, LS_LISTEN_TRIES = 20, LS_TOKEN_CHARS = 32 };

typedef struct ls_listener {
    int fd[2], n;
    int port;
    bool loopback;                  /* not reachable from another machine */
    char token[LS_TOKEN_CHARS + 1]; /* "": none is needed */
    char host[256];                 /* for the URL */
} ls_listener;

/* address NULL: loopback. port 0: the first free one from LS_LISTEN_PORT on. LS_E_CONFIG: not an address of this machine, or the port is in
 * use. */
ls_status ls_listen(const char *address, int64_t port, ls_listener *out);
/* Sockets that another process has opened. address: that of ls_listen; token: NULL or "" if it needs none. */
void ls_listen_take(ls_listener *out, int n, int first_fd, const char *address, const char *token);
void ls_listener_close(ls_listener *l);
/* "http://127.0.0.1:7007/", with the token if there is one. */
void ls_listener_url(const ls_listener *l, ls_str *out);
/* Whether the value of a Host header names this machine: localhost, an address of loopback, or the address that was given, with any port (that
 * of a tunnel differs). */
bool ls_listener_is_host(const ls_listener *l, const char *header);
/* Compares in a time that does not depend on where the texts differ. */
bool ls_token_equal(const char *token, const char *given);

#endif
