/* server.h - HTTP for the runs of a set: the page, its data, Prometheus metrics. GET and HEAD only; nothing can be changed through it.
 *
 *   /              the page (page.html, in the program)
 *   /api/runs      all runs, one object each
 *   /api/run?id=   one run with its curves
 *   /metrics       Prometheus text
 *
 * One thread, no locks: sockets, files and answers take turns in ls_server_run. A client that does not finish its request within
 * LS_SERVER_PATIENCE seconds is disconnected, at most LS_SERVER_CLIENTS are served at a time, and a request has at most LS_SERVER_REQUEST
 * bytes. On loopback, requests for another host name are refused: a page of another site cannot read the data through a name that it
 * points here. Elsewhere every request needs the token. */
#ifndef LS_SERVE_SERVER_H
#define LS_SERVE_SERVER_H

#include "serve/listen.h"
#include "serve/live_set.h"

enum { LS_SERVER_PATIENCE = 15, LS_SERVER_CLIENTS = 64, LS_SERVER_REQUEST = 16384 };

/* Whether this build has an HTTP server; if not, LS_E_UNSUPPORTED with what to do. */
ls_status ls_server_check(void);

/* Called a few times per second; true ends the server. idle: seconds since the last request. */
typedef bool ls_server_stop(void *ctx, double idle);

/* Takes the sockets of l. LS_E_IO, LS_E_NOMEM, LS_E_UNSUPPORTED. */
ls_status ls_server_run(ls_listener *l, ls_live_set *set, ls_server_stop *stop, void *ctx);

#endif
