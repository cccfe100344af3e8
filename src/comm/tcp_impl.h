/* tcp_impl.h - the transport over TCP: tcp_meet.c connects every pair of workers, tcp.c sends messages over these connections. */
#ifndef LS_COMM_TCP_IMPL_H
#define LS_COMM_TCP_IMPL_H

#include "comm/start.h"
#include "comm/transport.h"

#define TCP_EAGER (32 << 10) /* bytes: larger messages wait until their receive is posted */

extern const ls_transport tcp_transport; /* its start is not used: tcp_open */

/* A connection with every other rank: fd by rank, -1 for this one. */
typedef struct tcp_links {
    int rank, size;
    int *fd, *host;   /* host: its number, counted from 0 in the order of first ranks */
    char (*name)[64]; /* host name by rank */
} tcp_links;

/* Finds the other workers at MASTER_ADDR and MASTER_PORT. Within `limit` seconds; collective. */
ls_status tcp_meet(const ls_start_env *e, double limit, tcp_links *out);
void tcp_links_fini(tcp_links *l);

/* Starts the transport's thread; takes the connections of l, also on failure. silent: seconds without an acknowledgement after which a
 * connection counts as lost, 0: the system's default. */
ls_status tcp_open(tcp_links *l, double silent, void **out, ls_net_info *info);

#endif
