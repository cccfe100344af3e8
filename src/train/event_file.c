#include "train/event_file.h"

#include "core/clock.h"
#include "core/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PREFIX "events.out.tfevents."

enum { ROOM = 64 + LS_SCALAR_MAX * (LS_SCALAR_TAG_MAX + 16) };

/* Tag bytes of the fields: number << 3 | wire type (0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes). */
enum {
    EVENT_WALL_TIME = 1 << 3 | 1,
    EVENT_STEP = 2 << 3,
    EVENT_FILE_VERSION = 3 << 3 | 2,
    EVENT_SUMMARY = 5 << 3 | 2,
    EVENT_SESSION_LOG = 7 << 3 | 2,
    SUMMARY_VALUE = 1 << 3 | 2,
    VALUE_TAG = 1 << 3 | 2,
    VALUE_SIMPLE = 2 << 3 | 5,
    SESSION_STATUS = 1 << 3
};

typedef struct bytes {
    unsigned char data[ROOM];
    size_t n;
} bytes;

uint32_t ls_crc32c(const void *data, size_t n)
{
    const unsigned char *p = data;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

/* A checksum of data that may itself have checksums in it. */
static uint32_t masked(const void *data, size_t n)
{
    const uint32_t crc = ls_crc32c(data, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void put(bytes *b, const void *data, size_t n)
{
    LS_ASSERT(b->n + n <= sizeof b->data);
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

static void put_byte(bytes *b, int byte)
{
    put(b, &(unsigned char){(unsigned char)byte}, 1);
}

static void put_varint(bytes *b, uint64_t value)
{
    for (; value > 127; value >>= 7) put_byte(b, (int)(value & 127) | 128);
    put_byte(b, (int)value);
}

static void put_field(bytes *b, int field, const void *data, size_t n)
{
    put_byte(b, field);
    put_varint(b, n);
    put(b, data, n);
}

/* The record of an Event with one further field. */
static ls_status add(ls_event_file *f, int64_t step, int field, const void *data, size_t n)
{
    bytes event = {.n = 0}, record = {.n = 0};
    struct timespec now;
    ls_wall(&now);
    const double wall = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    put_byte(&event, EVENT_WALL_TIME);
    put(&event, &wall, sizeof wall);
    put_byte(&event, EVENT_STEP);
    put_varint(&event, (uint64_t)step);
    put_field(&event, field, data, n);
    const uint64_t length = event.n;
    const uint32_t sum[2] = {masked(&length, sizeof length), masked(event.data, event.n)};
    put(&record, &length, sizeof length);
    put(&record, &sum[0], sizeof sum[0]);
    put(&record, event.data, event.n);
    put(&record, &sum[1], sizeof sum[1]);
    return ls_fs_append(f->fd, f->path, record.data, record.n);
}

/* The seconds of the next file of a folder: now, or after the newest file, which may be of this second. */
static ls_status next_time(const char *dir, long long *out)
{
    char **names = NULL;
    size_t n = 0;
    *out = (long long)time(NULL);
    LS_TRY(ls_fs_list(dir, &names, &n));
    for (size_t i = 0; i < n; i++) {
        long long t;
        if (sscanf(names[i], PREFIX "%10lld.", &t) == 1 && t >= *out) *out = t + 1;
    }
    ls_fs_list_free(names, n);
    return LS_OK;
}

ls_status ls_event_file_open(ls_event_file *f, const char *dir, int64_t after)
{
    static const char version[] = "brain.Event:2";
    static const unsigned char start[] = {SESSION_STATUS, 1};
    ls_event_file file = {.fd = -1};
    char host[128] = "unknown";
    long long when;
    if (gethostname(host, sizeof host - 1) || !host[0]) snprintf(host, sizeof host, "unknown");
    LS_TRY(ls_fs_mkdirs(dir));
    LS_TRY(next_time(dir, &when));
    LS_TRY(ls_path_in(file.path, dir, PREFIX "%010lld.%s.%ld", when, host, (long)getpid()));
    file.fd = ls_fs_open(file.path, O_WRONLY | O_CREAT | O_APPEND);
    if (file.fd < 0) return ls_fail(LS_E_IO, "cannot write %s: %s", file.path, ls_fs_why(errno));
    ls_status st = add(&file, 0, EVENT_FILE_VERSION, version, sizeof version - 1);
    if (st == LS_OK && after >= 0) st = add(&file, after + 1, EVENT_SESSION_LOG, start, sizeof start);
    if (st == LS_OK) *f = file;
    else close(file.fd);
    return st;
}

ls_status ls_event_file_add(ls_event_file *f, int64_t step, const ls_scalar *scalar, int n)
{
    bytes summary = {.n = 0};
    LS_ASSERT(n <= LS_SCALAR_MAX);
    for (int i = 0; i < n; i++) {
        bytes value = {.n = 0};
        const float x = (float)scalar[i].value;
        put_field(&value, VALUE_TAG, scalar[i].tag, strlen(scalar[i].tag));
        put_byte(&value, VALUE_SIMPLE);
        put(&value, &x, sizeof x);
        put_field(&summary, SUMMARY_VALUE, value.data, value.n);
    }
    return add(f, step, EVENT_SUMMARY, summary.data, summary.n);
}

void ls_event_file_close(ls_event_file *f)
{
    if (*f->path) close(f->fd); /* every write has been checked */
    *f = (ls_event_file){.fd = -1};
}
