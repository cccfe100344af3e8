/* meet_impl.h - workers that a launcher started find each other, over local sockets or TCP, and prove that they belong to one run.
 *
 * Every connection begins with the same three messages. The side that accepted speaks first, so that a worker sends nothing to a
 * stranger that holds the port:
 *
 *   acceptor  ── challenge: magic, nonce ─────────────────────────► connector
 *   acceptor  ◄─ answer: magic, nonce, rank, host …, keyed hash ──  connector
 *   acceptor  ── verdict: accepted or the reason, keyed hash ─────► connector
 *
 * The hash (HMAC with SHA-256) is over both nonces and the message; its key comes from the run's token. Neither side sends the token.
 *
 * Invariants
 *   1. a connection that has not proved the token costs a slot of a table and a few bytes, and is closed after HANDSHAKE_TIME; when
 *      the table is full, the oldest one is closed;
 *   2. nothing that a stranger sends ends the start-up: it is counted and named when the time is over;
 *   3. no call waits past `until`. */
#ifndef LS_COMM_MEET_IMPL_H
#define LS_COMM_MEET_IMPL_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define MEET_DOORS   8  /* ports from MASTER_PORT on (or names of a local socket) that rank 0 may use     */
#define MEET_PENDING 64 /* connections that have not proved the token                                     */
#define MEET_KEY     32 /* bytes */

typedef struct meet_key {
    uint8_t byte[MEET_KEY];
} meet_key;

/* What a worker tells about itself. */
typedef struct meet_hello {
    int32_t rank, size, to; /* to: the rank that it wants to talk to          */
    int32_t port;           /* where it accepts connections itself; 0: nowhere */
    char host_id[64], host[64];
} meet_hello;

/* An attempt to reach rank `to` at one address, repeated until it succeeds. */
typedef struct meet_call {
    struct sockaddr_storage at;
    socklen_t n_at;
    int to;
    /* of meet_all */
    int fd, phase;
    double since, again; /* when the attempt began; when the next one begins */
    int n_try;
    uint8_t nonce[MEET_KEY], in[512];
    size_t n_in;
    char why[96]; /* the last failure; of a call that was answered and refused, that one */
    bool refused;
} meet_call;

/* A connection that has not proved the token. */
typedef struct meet_pending {
    int fd;
    double since;
    uint8_t nonce[MEET_KEY], in[512];
    size_t n_in;
    struct sockaddr_storage from;
} meet_pending;

typedef struct meeting {
    meet_key key;
    meet_hello me;
    bool local; /* over local sockets: peers must have the uid of this process */
    int door;   /* listening; -1: none */
    int n_call;
    meet_call *call;
    double until; /* ls_now() */
    double limit; /* of the whole start-up, for messages */
    /* by rank: the connection (-1: none, and then `expect` tells whether it must come), who it is, its address */
    int *fd;
    bool *expect;
    meet_hello *who;
    struct sockaddr_storage *from;
    meet_pending pending[MEET_PENDING];
    int n_pending, n_stranger;
    char stranger[160]; /* what one of them did */
} meeting;

/* The key of a run: from LOCKSTEP_TOKEN, else from `instead`. */
meet_key meet_key_of(const char *token, const char *instead);
meet_key meet_key_derive(const meet_key *k, const void *data, size_t n);
void meet_random(void *p, size_t n);

/* Room for `size` ranks, of which none is expected. */
ls_status meeting_init(meeting *m, const meet_hello *me, double until, double limit);
void meeting_fini(meeting *m); /* closes what is open, the connections as well */

/* Connects with every rank that is expected. On failure the missing ones are named; LS_E_CONFIG: two workers have the same rank, or
 * another number of workers. */
ls_status meet_all(meeting *m);

/* Whole messages on a connection of m; `from` is named on failure. */
ls_status meet_send(meeting *m, int rank, const void *p, size_t n);
ls_status meet_recv(meeting *m, int rank, void *p, size_t n);

/* From rank 0, in front of what follows a meeting: to go on, or why the start-up failed. */
typedef struct meet_note {
    int32_t status;
    char words[400];
} meet_note;
/* Rank 0 tells everyone who has come why the start-up failed; returns st. */
ls_status meet_fail_all(meeting *m, ls_status st);
ls_status meet_recv_note(meeting *m); /* the failure that rank 0 reports, or LS_OK */

#endif
