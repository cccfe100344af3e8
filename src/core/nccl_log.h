/* nccl_log.h - what NCCL states about itself: its log at NCCL_DEBUG=INFO, versions 2.19 to 2.30, read into one summary.
 *
 *   ls_nccl_log_init(&l); for each log file: ls_nccl_log_add(&l, text, n); ls_nccl_log_write(&l, &w)
 *
 * Lines are "host:pid:tid [device] NCCL INFO message", perhaps with a timestamp before them; everything else in a file is skipped. Which
 * subsystems a line needs (NCCL_DEBUG_SUBSYS):
 *
 *   INIT    version, communicators, channels, "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", rings, trees, network, NVLS
 *   GRAPH   the path type of rings ("Pattern 4, ... type NVL/PIX"), the links of the machine ("+ NVL[240.0] - NVS/0-0")
 *
 * What no line states is not known: -1, an empty text, and null in the summary. A log that is cut or garbled gives fewer facts, never wrong
 * memory accesses. Nothing here allocates, apart from the writer's string. */
#ifndef LS_CORE_NCCL_LOG_H
#define LS_CORE_NCCL_LOG_H

#include "core/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LS_NCCL_LOG_TRANSPORTS 24
#define LS_NCCL_LOG_DEVICES    32
#define LS_NCCL_LOG_NETWORKS   4
#define LS_NCCL_LOG_THREADS    64
#define LS_NCCL_LOG_RANKS      4096

typedef struct ls_nccl_transport {
    char name[40];   /* "P2P/CUMEM", "SHM", "NET/IB/GDRDMA", "NVLS" ... */
    int64_t out, in; /* connections that senders, and that receivers reported */
} ls_nccl_transport;

/* A process, as NCCL names it in its lines: the host name up to its first dot. */
typedef struct ls_nccl_writer {
    char host[64];
    int64_t pid;
} ls_nccl_writer;

void ls_nccl_writer_self(ls_nccl_writer *out);
/* The order that `only` needs, for qsort. */
int ls_nccl_writer_order(const void *a, const void *b);

typedef struct ls_nccl_log {
    const ls_nccl_writer *only; /* borrowed, set after init: lines of other processes are skipped; NULL: all count */
    int n_only;
    int n_foreign;              /* files with lines of other processes alone */
    int n_file;                 /* that had a line of NCCL */
    char version[32], cuda[16]; /* "2.30.7", "13.0" */
    bool versions_differ;
    int n_rank, n_node; /* of the largest communicator; -1: not stated */
    int n_rank_logged;  /* ranks of it whose start is in the logs */
    int n_comm;         /* communicators (each reported by its rank 0) */
    ls_nccl_transport transport[LS_NCCL_LOG_TRANSPORTS];
    int n_transport;
    bool transports_lost; /* there were more names than fit */
    int rings, trees;     /* channels of the largest communicator; -1: not stated */
    char ring[160];       /* ranks of its first ring in order, "0 1 3 2" */
    int channels, nvls_channels, p2p_channels;
    int rings_connected, trees_connected; /* communicators and ranks that reported it; 0: none */
    char path[8]; /* worst link of a ring inside a host: "NVL", "PIX", "SYS", "LOC" (one GPU) ...; "": not stated */
    double bw_intra, bw_inter; /* that NCCL expects of a ring's channel, GB/s; < 0: not stated */
    bool system;               /* the links of the machine were listed */
    bool nvlinks;              /* and NVLink was among them */
    char network[24];          /* "IB", "Socket", a plugin's; of several the first */
    struct {
        char name[24];
        int n; /* lines that state it: one per rank and communicator */
    } network_seen[LS_NCCL_LOG_NETWORKS];
    int n_network;                        /* that differ; those beyond the array are not counted */
    char device[LS_NCCL_LOG_DEVICES][40]; /* of the network: "mlx5_0:1/IB", "eth0:10.1.0.7" */
    int n_device;
    int n_warn;
    char warn[240]; /* the first one */
    int n_nvls;     /* ranks that set up NVLS */
    /* while reading */
    struct {
        long pid, tid;
        int n_rank;
    } thread[LS_NCCL_LOG_THREADS]; /* that start a communicator, and its size */
    int n_thread;
    unsigned char came[LS_NCCL_LOG_RANKS / 8];
} ls_nccl_log;

void ls_nccl_log_init(ls_nccl_log *l);
void ls_nccl_log_add(ls_nccl_log *l, const char *text, size_t n);

/* Whether something was used: 1, 0, or -1 when the logs do not state it. */
int ls_nccl_log_gpudirect(const ls_nccl_log *l); /* RDMA between GPU and network card */
int ls_nccl_log_nvlink(const ls_nccl_log *l);
int ls_nccl_log_infiniband(const ls_nccl_log *l); /* RoCE is not InfiniBand */
int ls_nccl_log_nvls(const ls_nccl_log *l);

/* The members of an open object. */
void ls_nccl_log_write(const ls_nccl_log *l, ls_jsonw *w);

#endif
