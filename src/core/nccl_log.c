#include "core/nccl_log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATTERN_RING = 4, LINE = 1536 };

static void forget_largest(ls_nccl_log *l)
{
    l->n_node = l->rings = l->trees = l->channels = l->nvls_channels = l->p2p_channels = -1;
    l->n_rank_logged = 0;
    l->ring[0] = l->path[0] = '\0';
    l->bw_intra = l->bw_inter = -1;
    memset(l->came, 0, sizeof l->came);
}

void ls_nccl_log_init(ls_nccl_log *l)
{
    *l = (ls_nccl_log){.n_rank = -1};
    forget_largest(l);
}

/* ---- lines ---- */

typedef struct line {
    char host[64];
    long pid, tid;   /* -1: not stated */
    const char *say; /* the message, NUL-terminated */
    bool warns;
} line;

/* The thread of "host:pid:tid [device] …", whose blank before the bracket is at `end`. */
static void read_thread(const char *text, const char *end, line *out)
{
    const char *p = end;
    int colons = 0;
    while (p > text && p[-1] != ' ' && colons < 2) colons += *--p == ':';
    out->pid = out->tid = -1;
    if (colons != 2 || sscanf(p, ":%ld:%ld", &out->pid, &out->tid) != 2) return;
    const char *host = p;
    while (host > text && host[-1] != ' ') host--;
    snprintf(out->host, sizeof out->host, "%.*s", (int)(p - host), host);
}

/* One line of the file, copied into buf; false: it is none of NCCL's. */
static bool read_line(char *buf, line *out)
{
    static const char info[] = " NCCL INFO ", warn[] = " NCCL WARN ";
    const char *at = strstr(buf, info), *device;
    *out = (line){.pid = -1, .tid = -1};
    if (!at && (at = strstr(buf, warn))) out->warns = true;
    if (!at) {
        out->say = buf; /* older versions print the version without more */
        return !strncmp(buf, "NCCL version ", 13);
    }
    out->say = at + sizeof info - 1;
    for (device = at; device > buf && *device != '['; device--) {}
    if (device > buf) read_thread(buf, device - 1, out);
    return true;
}

/* ---- communicators ---- */

static void thread_starts(ls_nccl_log *l, const line *x, int n_rank)
{
    int at = 0;
    while (at < l->n_thread && (l->thread[at].pid != x->pid || l->thread[at].tid != x->tid)) at++;
    if (at == LS_NCCL_LOG_THREADS) at = 0;
    else if (at == l->n_thread) l->n_thread++;
    l->thread[at].pid = x->pid;
    l->thread[at].tid = x->tid;
    l->thread[at].n_rank = n_rank;
    if (n_rank <= l->n_rank) return;
    l->n_rank = n_rank;
    forget_largest(l);
}

/* Whether the line is about the largest communicator; one whose thread started none is taken for it. */
static bool of_largest(const ls_nccl_log *l, const line *x)
{
    for (int i = 0; i < l->n_thread; i++)
        if (l->thread[i].pid == x->pid && l->thread[i].tid == x->tid) return l->thread[i].n_rank >= l->n_rank;
    return true;
}

/* "comm 0x… rank 0 nranks 2 …"; false: another line. */
static bool read_comm(const char *say, int *rank, int *n_rank, const char **rest)
{
    const char *p = strstr(say, "comm 0x");
    int used = 0;
    if (!p || !(p = strstr(p, " rank "))) return false;
    if (sscanf(p, " rank %d nranks %d%n", rank, n_rank, &used) < 2 || !used) used = 0;
    if (!used && (sscanf(p, " rank %d nRanks %d%n", rank, n_rank, &used) < 2 || !used)) return false;
    *rest = p + used;
    return *n_rank > 0 && *rank >= 0 && *rank < *n_rank;
}

static bool take_comm(ls_nccl_log *l, const line *x)
{
    const char *rest;
    int rank, n_rank, nodes;
    if (!read_comm(x->say, &rank, &n_rank, &rest)) return false;
    const bool counted = sscanf(rest, " nNodes %d", &nodes) == 1, complete = strstr(rest, "Init COMPLETE") != NULL;
    if (counted || complete || strstr(rest, "Init START")) thread_starts(l, x, n_rank); /* else: its end */
    if (counted && n_rank == l->n_rank && l->n_node < 0) l->n_node = nodes;
    if (!complete) return true;
    l->n_comm += rank == 0;
    if (n_rank == l->n_rank && rank < LS_NCCL_LOG_RANKS && !(l->came[rank / 8] & 1 << rank % 8)) {
        l->came[rank / 8] = (unsigned char)(l->came[rank / 8] | 1 << rank % 8);
        l->n_rank_logged++;
    }
    return true;
}

/* ---- connections ---- */

static void count_transport(ls_nccl_log *l, const char *name, bool in)
{
    int i = 0;
    while (i < l->n_transport && strcmp(l->transport[i].name, name)) i++;
    if (i == LS_NCCL_LOG_TRANSPORTS) {
        l->transports_lost = true;
        return;
    }
    if (i == l->n_transport) snprintf(l->transport[l->n_transport++].name, sizeof l->transport[i].name, "%s", name);
    *(in ? &l->transport[i].in : &l->transport[i].out) += 1;
}

/* "P2P/CUMEM/read" -> P2P/CUMEM, "SHM/direct/direct" -> SHM, "NET/IB/0(1)/GDRDMA/Shared" -> NET/IB/GDRDMA */
static void name_transport(const char *via, char *name, size_t room)
{
    const char *kind = strchr(via, '/'), *end = kind ? strchr(kind + 1, '/') : NULL;
    const size_t n = end ? (size_t)(end - via) : strlen(via);
    if (!strncmp(via, "SHM", 3)) snprintf(name, room, "SHM");
    else snprintf(name, room, "%.*s%s", (int)(n < 28 ? n : 28), via, strstr(via, "/GDRDMA") ? "/GDRDMA" : "");
}

/* "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", "Channel 02 : …  via SHM/direct", "CollNet 00/0 : 0 [send] via COLLNET/…" */
static bool take_connection(ls_nccl_log *l, const line *x)
{
    const char *via = strstr(x->say, " via ");
    char name[40];
    if (!via || (strncmp(x->say, "Channel ", 8) && strncmp(x->say, "CollNet ", 8))) return false;
    name_transport(via + 5, name, sizeof name);
    const char *in = strstr(x->say, "[receive]");
    count_transport(l, name, in && in < via);
    return true;
}

/* ---- rings, trees, channels ---- */

/* "Channel 00/16 :    0   1   2   3", by rank 0 */
static bool take_ring(ls_nccl_log *l, const line *x)
{
    int c, n, used = 0;
    if (sscanf(x->say, "Channel %d/%d :%n", &c, &n, &used) < 2 || !used) return false;
    if (!of_largest(l, x) || n <= 0) return true;
    if (l->rings < 0) l->rings = n;
    if (c || l->ring[0]) return true;
    for (const char *p = x->say + used; *p;) {
        char *end;
        const long r = strtol(p, &end, 10);
        const size_t len = strlen(l->ring);
        if (end == p) break; /* NCCL cuts long rings: "..." */
        snprintf(l->ring + len, sizeof l->ring - len, "%s%ld", len ? " " : "", r);
        p = end;
    }
    return true;
}

/* "Trees [0] 1/-1/-1->0->-1 [1] …" */
static bool take_trees(ls_nccl_log *l, const line *x)
{
    int n = 0;
    if (strncmp(x->say, "Trees [", 7)) return false;
    for (const char *p = x->say; (p = strchr(p, '[')); p++) n++;
    if (of_largest(l, x) && n > l->trees) l->trees = n;
    return true;
}

static bool take_channels(ls_nccl_log *l, const line *x)
{
    int coll, collnet, nvls, p2p;
    if (!strstr(x->say, " coll channels, ")) return false;
    const bool full = sscanf(x->say, "%d coll channels, %d collnet channels, %d nvls channels, %d p2p channels", &coll,
                             &collnet, &nvls, &p2p) == 4;
    if (!full && sscanf(x->say, "%d coll channels, %d nvls channels, %d p2p channels", &coll, &nvls, &p2p) != 3)
        return true;
    if (!of_largest(l, x) || l->channels >= 0) return true;
    l->channels = coll;
    l->nvls_channels = nvls;
    l->p2p_channels = p2p;
    return true;
}

/* "Pattern 4, crossNic 0, nChannels 16, bw 40.000000/40.000000, type NVL/PIX, sameChannels 1" */
static bool take_pattern(ls_nccl_log *l, const line *x)
{
    int pattern, cross, n;
    double intra, inter;
    char type[8];
    if (sscanf(x->say, "Pattern %d, crossNic %d, nChannels %d, bw %lf/%lf, type %7[A-Z0-9]", &pattern, &cross, &n,
               &intra, &inter, type) != 6)
        return false;
    if (pattern != PATTERN_RING || !of_largest(l, x) || l->path[0]) return true;
    snprintf(l->path, sizeof l->path, "%s", type);
    l->bw_intra = intra;
    l->bw_inter = inter;
    return true;
}

/* ---- the machine ---- */

static void add_device(ls_nccl_log *l, const char *name, size_t n)
{
    char text[sizeof l->device[0]];
    snprintf(text, sizeof text, "%.*s", (int)(n < sizeof text - 1 ? n : sizeof text - 1), name);
    char *port = strchr(text, '<'); /* of a socket: always 0 */
    if (port) *port = '\0';
    for (int i = 0; i < l->n_device; i++)
        if (!strcmp(l->device[i], text)) return;
    if (l->n_device < LS_NCCL_LOG_DEVICES) snprintf(l->device[l->n_device++], sizeof text, "%s", text);
}

/* "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB ib0:10.1.0.7<0>" */
static bool take_devices(ls_nccl_log *l, const line *x)
{
    const char *p = strstr(x->say, " : Using ");
    if (strncmp(x->say, "NET/", 4) || !p) return false;
    for (p += 9; *p && *p != ';';) {
        const size_t n = strcspn(p, " ;");
        const char *name = memchr(p, ']', n);
        if (p[0] == '[' && p[1] >= '0' && p[1] <= '9' && name) add_device(l, name + 1, n - (size_t)(name + 1 - p));
        p += n + (p[n] == ' ');
    }
    return true;
}

static void take_network(ls_nccl_log *l, const char *text)
{
    char name[sizeof l->network];
    int k = 0;
    snprintf(name, sizeof name, "%.23s", text);
    while (k < l->n_network && strcmp(l->network_seen[k].name, name)) k++;
    if (k == LS_NCCL_LOG_NETWORKS) return;
    if (k == l->n_network) memcpy(l->network_seen[l->n_network++].name, name, sizeof name);
    l->network_seen[k].n++;
    memcpy(l->network, l->network_seen[0].name, sizeof l->network);
}

static bool take_system(ls_nccl_log *l, const line *x)
{
    if (!strncmp(x->say, "=== System : ", 13)) l->system = true;
    else if (strstr(x->say, "+ NVL[")) l->nvlinks = true;
    else if (!strncmp(x->say, "NVLS comm 0x", 12)) l->n_nvls++;
    else if (!strncmp(x->say, "Using network ", 14)) take_network(l, x->say + 14);
    else if (!strncmp(x->say, "Connected all rings", 19)) l->rings_connected++;
    else if (!strncmp(x->say, "Connected all trees", 19)) l->trees_connected++;
    else return false;
    return true;
}

static bool take_version(ls_nccl_log *l, const line *x)
{
    char version[32], cuda[16] = "";
    if (sscanf(x->say, "NCCL version %31[^+ \n]+cuda%15[0-9.]", version, cuda) < 1) return false;
    if (l->version[0] && strcmp(l->version, version)) l->versions_differ = true;
    if (!l->version[0]) {
        snprintf(l->version, sizeof l->version, "%s", version);
        snprintf(l->cuda, sizeof l->cuda, "%s", cuda);
    }
    return true;
}

static void take(ls_nccl_log *l, const line *x)
{
    static bool (*const kind[])(ls_nccl_log *, const line *) = {take_connection, take_ring,    take_trees,
                                                                take_channels,   take_pattern, take_comm,
                                                                take_devices,    take_system,  take_version};
    if (x->warns) {
        if (!l->n_warn++) snprintf(l->warn, sizeof l->warn, "%.239s", x->say);
        return;
    }
    for (size_t i = 0; i < sizeof kind / sizeof kind[0]; i++)
        if (kind[i](l, x)) return;
}

/* Copies the line at *at into buf and moves on; false at the end. */
static bool next_line(const char *text, size_t n, size_t *at, char buf[LINE])
{
    if (*at >= n) return false;
    const char *begin = text + *at, *end = memchr(begin, '\n', n - *at);
    const size_t len = end ? (size_t)(end - begin) : n - *at, keep = len < LINE - 1 ? len : LINE - 1;
    memcpy(buf, begin, keep);
    buf[keep] = '\0'; /* a NUL inside cuts the line */
    if (keep && buf[keep - 1] == '\r') buf[keep - 1] = '\0';
    *at += len + 1;
    return true;
}

void ls_nccl_writer_self(ls_nccl_writer *out)
{
    *out = (ls_nccl_writer){.pid = getpid()};
    (void)gethostname(out->host, sizeof out->host - 1);
    out->host[strcspn(out->host, "./")] = '\0';
}

int ls_nccl_writer_order(const void *a, const void *b)
{
    const ls_nccl_writer *x = a, *y = b;
    return x->pid != y->pid ? (x->pid > y->pid) - (x->pid < y->pid) : strcmp(x->host, y->host);
}

static bool counts(const ls_nccl_log *l, const line *x)
{
    ls_nccl_writer key = {.pid = x->pid};
    memcpy(key.host, x->host, sizeof key.host);
    return !l->only || bsearch(&key, l->only, (size_t)l->n_only, sizeof key, ls_nccl_writer_order);
}

void ls_nccl_log_add(ls_nccl_log *l, const char *text, size_t n)
{
    char buf[LINE];
    line x;
    bool ours = false, any = false;
    for (size_t at = 0; !ours && next_line(text, n, &at, buf);)
        if (read_line(buf, &x)) any = true, ours = counts(l, &x);
    if (!ours) {
        l->n_foreign += any;
        return;
    }
    l->n_thread = 0; /* another process */
    for (size_t at = 0; next_line(text, n, &at, buf);)
        if (read_line(buf, &x) && (x.pid < 0 || counts(l, &x))) take(l, &x);
    l->n_file++;
}

/* ---- what follows from it ---- */

static int n_with(const ls_nccl_log *l, const char *begin, const char *part)
{
    int n = 0;
    for (int i = 0; i < l->n_transport; i++)
        n += !strncmp(l->transport[i].name, begin, strlen(begin)) && strstr(l->transport[i].name, part);
    return n;
}

int ls_nccl_log_gpudirect(const ls_nccl_log *l)
{
    return l->n_transport ? n_with(l, "", "/GDRDMA") > 0 : -1;
}

int ls_nccl_log_nvlink(const ls_nccl_log *l)
{
    if (n_with(l, "P2P/MNNVL", "") || l->n_nvls) return 1;
    if (!l->n_transport) return -1;
    if (!n_with(l, "P2P/", "")) return 0;
    if (!strcmp(l->path, "NVL") || !strcmp(l->path, "NVB")) return 1;
    if (!strcmp(l->path, "LOC") || (l->system && !l->nvlinks)) return 0; /* one GPU; no such link */
    return -1; /* the worst link of a ring is another one: the rest is not stated */
}

int ls_nccl_log_infiniband(const ls_nccl_log *l)
{
    int ib = 0, roce = 0;
    if (!l->n_transport) return -1;
    if (!n_with(l, "NET/IB", "") && !n_with(l, "COLLNET/", "")) return 0;
    for (int i = 0; i < l->n_device; i++) {
        const char *link = strrchr(l->device[i], '/');
        ib += link && !strcmp(link, "/IB");
        roce += link && !strcmp(link, "/RoCE");
    }
    return ib && !roce ? 1 : roce && !ib ? 0 : -1;
}

int ls_nccl_log_nvls(const ls_nccl_log *l)
{
    return l->n_nvls || l->nvls_channels > 0 ? 1 : l->nvls_channels;
}

/* ---- writing ---- */

static void put_used(ls_jsonw *w, const char *key, int used)
{
    if (used < 0) ls_jsonw_put_str(w, key, NULL);
    else ls_jsonw_put_bool(w, key, used);
}

static void put_rate(ls_jsonw *w, const char *key, double x)
{
    ls_jsonw_put_real(w, key, x < 0 ? (double)NAN : x); /* written as null */
}

static void put_text(ls_jsonw *w, const char *key, const char *text)
{
    ls_jsonw_put_str(w, key, text[0] ? text : NULL);
}

/* Ranks that state different networks: all of them, "IB (6), Socket (2)". */
static void put_networks(ls_jsonw *w, const ls_nccl_log *l)
{
    char text[LS_NCCL_LOG_NETWORKS * 48] = "";
    size_t at = 0;
    for (int i = 0; i < l->n_network && l->n_network > 1; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s (%d)", i ? ", " : "", l->network_seen[i].name,
                               l->network_seen[i].n);
    put_text(w, "network", l->n_network > 1 ? text : l->network);
}

static void write_transports(const ls_nccl_log *l, ls_jsonw *w)
{
    ls_jsonw_key(w, "transports");
    if (!l->n_transport && !l->n_nvls) {
        ls_jsonw_null(w);
        return;
    }
    ls_jsonw_open(w, '{');
    for (int i = 0; i < l->n_transport; i++) {
        const ls_nccl_transport *t = &l->transport[i];
        ls_jsonw_put_int(w, t->name, t->out > t->in ? t->out : t->in); /* both ends report one of the network */
    }
    if (l->n_nvls) ls_jsonw_put_int(w, "NVLS", l->n_nvls);
    ls_jsonw_close(w);
}

void ls_nccl_log_write(const ls_nccl_log *l, ls_jsonw *w)
{
    put_text(w, "version", l->version);
    put_text(w, "cuda", l->cuda);
    ls_jsonw_put_count(w, "n_ranks", l->n_rank);
    ls_jsonw_put_int(w, "n_ranks_logged", l->n_rank_logged);
    ls_jsonw_put_count(w, "n_nodes", l->n_node);
    ls_jsonw_put_count(w, "communicators", l->n_file ? l->n_comm : -1); /* without a log nothing is known */
    ls_jsonw_put_int(w, "logs", l->n_file);
    put_networks(w, l);
    ls_jsonw_put_open(w, "network_devices", '[');
    for (int i = 0; i < l->n_device; i++) ls_jsonw_str(w, l->device[i]);
    ls_jsonw_close(w);
    write_transports(l, w);
    ls_jsonw_put_count(w, "rings", l->rings);
    put_text(w, "first_ring", l->ring);
    put_text(w, "ring_path", l->path);
    put_rate(w, "ring_bw_intra_gb_per_sec", l->bw_intra);
    put_rate(w, "ring_bw_inter_gb_per_sec", l->bw_inter);
    ls_jsonw_put_count(w, "trees", l->trees);
    ls_jsonw_put_count(w, "channels", l->channels);
    ls_jsonw_put_count(w, "nvls_channels", l->nvls_channels);
    ls_jsonw_put_count(w, "p2p_channels", l->p2p_channels);
    ls_jsonw_put_count(w, "rings_connected", l->n_file ? l->rings_connected : -1);
    ls_jsonw_put_count(w, "trees_connected", l->n_file ? l->trees_connected : -1);
    put_used(w, "gpudirect_rdma", ls_nccl_log_gpudirect(l));
    put_used(w, "nvlink", ls_nccl_log_nvlink(l));
    put_used(w, "nvls", ls_nccl_log_nvls(l));
    put_used(w, "infiniband", ls_nccl_log_infiniband(l));
    ls_jsonw_put_count(w, "warnings", l->n_file ? l->n_warn : -1);
    put_text(w, "first_warning", l->warn);
    if (l->versions_differ) ls_jsonw_put_bool(w, "versions_differ", true);
    if (l->transports_lost) ls_jsonw_put_bool(w, "more_transports", true);
}
