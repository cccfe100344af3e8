/* fetch.c - one file over HTTP, in as many connections as it takes. */
#include "data/fetch.h"
#include "data/meta.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/minmax.h"
#include "core/stop.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#define WAIT_MAX 30.0 /* seconds between attempts */

typedef struct transfer {
    const ls_fetch_opts *o;
    char part[PATH_MAX];
    int fd;
    int64_t have;  /* bytes of the part file */
    int64_t first; /* of them, those before this connection */
    int64_t total, fetched;
    double start;
    CURL *curl;
    char tag[256]; /* of the file that the part belongs to: its ETag or date at the server; "": not known */
    ls_status st;  /* why `store` or `look` ended it */
} transfer;

/* Bytes of the answer by its header; -1: not known. */
static int64_t answer_length(CURL *c)
{
    curl_off_t n = -1;
    return curl_easy_getinfo(c, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &n) == CURLE_OK ? (int64_t)n : -1;
}

static ls_status not_the_file(const transfer *t, int64_t has)
{
    char kept[PATH_MAX + 40] = "";
    if (t->first) snprintf(kept, sizeof kept, "; %s is kept", t->part);
    return ls_fail(LS_E_FORMAT,
                   "%s: the server sends %s%lld bytes, expected %lld: another file, or a page that asks for a login%s",
                   t->o->url, has < 0 ? "more than " : "", (long long)(has < 0 ? t->o->nbytes : has),
                   (long long)t->o->nbytes, kept);
}

static ls_status check_length(const transfer *t, int64_t more)
{
    const int64_t length = t->have == t->first ? answer_length(t->curl) : -1, want = t->o->nbytes;
    if (want >= 0 && length >= 0 && t->have + length != want) return not_the_file(t, t->have + length);
    if (t->o->max_bytes && t->have + more > t->o->max_bytes)
        return ls_fail(LS_E_FORMAT, "%s: more than %lld bytes", t->o->url, (long long)t->o->max_bytes);
    return want >= 0 && t->have + more > want ? not_the_file(t, -1) : LS_OK;
}

/* ---- the tag, in <part>.tag: a file that changed at the server is not continued (If-Range) ---- */

typedef struct tag_path {
    char text[PATH_MAX + 8];
} tag_path;

static tag_path tag_path_of(const transfer *t)
{
    tag_path p;
    snprintf(p.text, sizeof p.text, "%s.tag", t->part);
    return p;
}

static void read_tag(transfer *t)
{
    char *text = NULL;
    size_t n = 0;
    if (!t->have || !ls_fs_exists(tag_path_of(t).text)) return;
    if (ls_fs_read_most(tag_path_of(t).text, sizeof t->tag - 1, &text, &n) != LS_OK) ls_err_clear();
    if (text && n < sizeof t->tag && strcspn(text, "\r\n") >= n) snprintf(t->tag, sizeof t->tag, "%.*s", (int)n, text);
    ls_free(text);
}

/* At the first bytes of the file. A weak ETag does not identify bytes. */
static void keep_tag(transfer *t)
{
    struct curl_header *h = NULL;
    const bool etag = curl_easy_header(t->curl, "ETag", 0, CURLH_HEADER, -1, &h) == CURLHE_OK && h->value[0] == '"';
    const bool any = etag || curl_easy_header(t->curl, "Last-Modified", 0, CURLH_HEADER, -1, &h) == CURLHE_OK;
    t->tag[0] = '\0';
    if (any && strlen(h->value) < sizeof t->tag) snprintf(t->tag, sizeof t->tag, "%s", h->value);
    unlink(tag_path_of(t).text);
    if (t->tag[0] && ls_fs_write(tag_path_of(t).text, t->tag, strlen(t->tag)) != LS_OK) ls_err_clear();
}

static struct curl_slist *if_range(const transfer *t)
{
    char line[sizeof t->tag + 16];
    if (!t->have || !t->tag[0]) return NULL;
    snprintf(line, sizeof line, "If-Range: %s", t->tag);
    return curl_slist_append(NULL, line);
}

static size_t store(char *data, size_t size, size_t n, void *ctx)
{
    transfer *t = ctx;
    t->st = check_length(t, (int64_t)(size * n));
    if (t->st == LS_OK && !t->have) keep_tag(t);
    if (t->st == LS_OK) t->st = ls_fs_append(t->fd, t->part, data, size * n);
    if (t->st != LS_OK) return 0;
    t->have += (int64_t)(size * n);
    t->fetched += (int64_t)(size * n);
    return size * n;
}

/* Called by libcurl about once per second, and with data. */
static int look(void *ctx, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up_now)
{
    transfer *t = ctx;
    (void)up_total;
    (void)up_now;
    if (total > 0) t->total = t->have - now + total;
    const double seconds = ls_now() - t->start;
    if (t->o->progress)
        t->o->progress(t->o->progress_ctx, t->have, t->o->nbytes >= 0 ? t->o->nbytes : t->total,
                       seconds > 0 ? (double)t->fetched / seconds : 0);
    if (ls_stop_requested()) t->st = ls_fail(LS_E_STOPPED, "stopped; the same command continues the download");
    return t->st != LS_OK;
}

static ls_status open_part(transfer *t)
{
    char *slash, dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%s", t->part);
    if ((slash = strrchr(dir, '/')) && slash != dir) {
        *slash = '\0';
        LS_TRY(ls_fs_mkdirs(dir));
    }
    t->fd = open(t->part, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (t->fd < 0) return ls_fail(LS_E_IO, "cannot write %s: %s", t->part, strerror(errno));
    t->have = lseek(t->fd, 0, SEEK_END);
    return t->have < 0 ? ls_fail(LS_E_IO, "cannot write %s: %s", t->part, strerror(errno)) : LS_OK;
}

/* Keeps the first n bytes of the part file. */
static ls_status cut_part(transfer *t, int64_t n)
{
    t->have = n;
    if (ftruncate(t->fd, (off_t)n) || lseek(t->fd, (off_t)n, SEEK_SET) != (off_t)n)
        return ls_fail(LS_E_IO, "cannot write %s: %s", t->part, strerror(errno));
    return LS_OK;
}

/* One connection, from the end of the part file on. */
static CURLcode connect_once(transfer *t, char reason[CURL_ERROR_SIZE], long *http, int64_t *length)
{
    CURL *c = t->curl = curl_easy_init();
    if (!c) return CURLE_OUT_OF_MEMORY;
    t->first = t->have;
    curl_easy_setopt(c, CURLOPT_URL, t->o->url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https,file");
    curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, reason);
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(c, CURLOPT_MAXREDIRS, 10L);
    curl_easy_setopt(c, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, 15L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1000L); /* bytes per second, for */
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, 30L);    /* seconds: abort */
    curl_easy_setopt(c, CURLOPT_RESUME_FROM_LARGE, (curl_off_t)t->have);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, store);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, look);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, t);
    struct curl_slist *headers = if_range(t);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    const CURLcode rc = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, http);
    *length = answer_length(c);
    curl_easy_cleanup(c);
    curl_slist_free_all(headers);
    t->curl = NULL;
    return rc;
}

/* Failures that another attempt may not have: broken connections, and errors of a busy server. */
static bool may_pass(CURLcode rc, long http)
{
    if (rc == CURLE_HTTP_RETURNED_ERROR) return http >= 500 || http == 408 || http == 429;
    return rc == CURLE_PARTIAL_FILE || rc == CURLE_RECV_ERROR || rc == CURLE_SEND_ERROR || rc == CURLE_GOT_NOTHING ||
           rc == CURLE_COULDNT_CONNECT || rc == CURLE_OPERATION_TIMEDOUT || rc == CURLE_SSL_CONNECT_ERROR ||
           rc == CURLE_HTTP2 || rc == CURLE_HTTP2_STREAM;
}

/* Waits before attempt k in a row that may bring nothing: 0, 1, 2, 4 ... seconds. */
static ls_status wait_before(int k)
{
    const double seconds = k < 1 ? 0 : (double)(1 << (k < 6 ? k - 1 : 5)),
                 until = ls_now() + (seconds < WAIT_MAX ? seconds : WAIT_MAX);
    while (ls_now() < until) {
        if (ls_stop_requested()) return ls_fail(LS_E_STOPPED, "stopped; the same command continues the download");
        usleep(50000);
    }
    return LS_OK;
}

/* The server does not continue the part file: it is dropped only for an answer that can be the whole file. */
static ls_status start_again(transfer *t, long http, int64_t length)
{
    const int64_t want = t->o->nbytes;
    if (http == 206) { /* another range than was asked for: its length is not that of the file */
        ls_info("data", "%s: the server sends another part than from byte %lld on; starting again", t->o->url,
                (long long)t->have);
        return cut_part(t, 0);
    }
    if (want >= 0 && length >= 0 && length != want) return not_the_file(t, length);
    if (want >= 0 && length < 0)
        return ls_fail(
            LS_E_IO,
            "%s: the server does not continue at byte %lld and does not say how long the file is; remove %s to "
            "start again",
            t->o->url, (long long)t->have, t->part);
    ls_info("data", "%s: the server does not continue at byte %lld; starting again", t->o->url, (long long)t->have);
    return cut_part(t, 0);
}

static ls_status download(transfer *t, ls_fetch_result *r)
{
    bool ranges = true; /* until the server shows that it has none */
    int64_t most = t->have;
    if (t->o->nbytes >= 0 && t->have > t->o->nbytes) LS_TRY(cut_part(t, 0)); /* of another file */
    for (int nothing = 0;;) {
        char reason[CURL_ERROR_SIZE] = "";
        long http = 0;
        int64_t length = -1;
        if (t->have && t->have == t->o->nbytes) return LS_OK;
        const CURLcode rc = connect_once(t, reason, &http, &length);
        if (t->st == LS_E_FORMAT) { /* none of it belongs to the file */
            ls_err_kept why;
            ls_err_keep(&why);
            LS_TRY(cut_part(t, t->first));
            ls_err_restore(&why);
            return t->st;
        }
        if (t->st != LS_OK) return t->st;
        if (rc == CURLE_OK && (t->o->nbytes < 0 || t->have == t->o->nbytes)) return LS_OK;
        const bool past_end = rc == CURLE_HTTP_RETURNED_ERROR && http == 416;
        if ((rc == CURLE_RANGE_ERROR || past_end || rc == CURLE_BAD_DOWNLOAD_RESUME) && ranges && t->have) {
            LS_TRY(start_again(t, http, past_end ? -1 : length));
            ranges = false;
            continue;
        }
        if (rc == CURLE_OK) snprintf(reason, sizeof reason, "the connection ended early");
        nothing = t->have > most ? 0 : nothing + 1;
        most = LS_MAX(most, t->have);
        if ((rc != CURLE_OK && !may_pass(rc, http)) || nothing > t->o->retries)
            return ls_fail(LS_E_IO, "%s: %s", t->o->url, *reason ? reason : curl_easy_strerror(rc));
        r->n_broken++;
        ls_info("data", "%s: %s after %lld bytes; trying again", t->o->url, *reason ? reason : curl_easy_strerror(rc),
                (long long)t->have);
        LS_TRY(wait_before(nothing));
        if (!ranges) LS_TRY(cut_part(t, 0));
    }
}

/* Size and checksum of a file; what: for the message. */
static ls_status check(const ls_fetch_opts *o, const char *path, const char *what, ls_fetch_result *r)
{
    LS_TRY(ls_fs_size(path, &r->nbytes));
    if (o->nbytes >= 0 && r->nbytes != o->nbytes)
        return ls_fail(LS_E_FORMAT, "%s has %lld bytes, expected %lld", what, (long long)r->nbytes,
                       (long long)o->nbytes);
    LS_TRY(data_file_sha256(path, r->sha256));
    if (o->sha256 && strcmp(r->sha256, o->sha256))
        return ls_fail(LS_E_FORMAT, "%s: %lld bytes with SHA-256 %.16s..., expected %.16s...", what,
                       (long long)r->nbytes, r->sha256, o->sha256);
    return LS_OK;
}

static ls_status finish(transfer *t, ls_fetch_result *r)
{
    if (fsync(t->fd) && errno != EINVAL) return ls_fail(LS_E_IO, "cannot sync %s: %s", t->part, strerror(errno));
    const ls_status st = check(t->o, t->part, t->o->url, r);
    if (st == LS_OK) return ls_fs_rename(t->part, t->o->path);
    if (st == LS_E_FORMAT) unlink(t->part);
    return st;
}

/* What comes with the program. */
static ls_status unpack(const ls_fetch_opts *o, ls_fetch_result *r)
{
    const unsigned long long n = ZSTD_getFrameContentSize(o->packed, o->npacked);
    LS_ASSERT(n != ZSTD_CONTENTSIZE_UNKNOWN && n != ZSTD_CONTENTSIZE_ERROR);
    char *text = ls_alloc((size_t)n);
    if (!text) return ls_nomem((size_t)n, o->path);
    ls_status st = ZSTD_decompress(text, (size_t)n, o->packed, o->npacked) == n
                       ? ls_fs_write(o->path, text, (size_t)n)
                       : ls_fail(LS_E_FORMAT, "%s: the copy in this program is damaged; install it again", o->path);
    ls_free(text);
    LS_TRY(st);
    st = check(o, o->path, o->path, r);
    if (st == LS_E_FORMAT) unlink(o->path);
    return st;
}

ls_status ls_fetch(const ls_fetch_opts *o, ls_fetch_result *result)
{
    ls_fetch_result r = {0};
    transfer t = {.o = o, .fd = -1, .total = -1, .start = ls_now()};
    ls_status st;
    if (ls_fs_exists(o->path)) {
        r.had_it = true;
        st = check(o, o->path, o->path, &r);
        if (st == LS_E_FORMAT) {
            ls_err_kept why;
            ls_err_keep(&why);
            return ls_fail(st, "%s; move or remove it to get it again", why.words);
        }
        if (st == LS_OK) *result = r;
        return st;
    }
    if (o->packed) {
        st = unpack(o, &r);
        if (st == LS_OK) *result = r;
        return st;
    }
    const int n = snprintf(t.part, sizeof t.part, "%s.part", o->path);
    if (n < 0 || (size_t)n >= sizeof t.part) return ls_fail(LS_E_IO, "the path %.200s... is too long", o->path);
    curl_global_init(CURL_GLOBAL_DEFAULT);
    LS_TRY_GOTO(st, done, open_part(&t));
    read_tag(&t);
    LS_TRY_GOTO(st, done, download(&t, &r));
    r.fetched = t.fetched;
    LS_TRY_GOTO(st, done, finish(&t, &r));
    *result = r;
done:
    if (t.fd >= 0) close(t.fd);
    if (st != LS_OK && t.fd >= 0 && !t.have) unlink(t.part);
    if (t.fd >= 0 && !ls_fs_exists(t.part)) unlink(tag_path_of(&t).text);
    return st;
}
