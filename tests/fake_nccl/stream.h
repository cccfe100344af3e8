/* stream.h - a stream of the test double of a device, for a library that queues its own work on it (fake_nccl.c). */
#ifndef LS_TESTS_FAKE_STREAM_H
#define LS_TESTS_FAKE_STREAM_H

typedef struct fake_stream {
    void (*queue)(struct fake_stream *s, void (*call)(void *),
                  void *arg); /* call(arg) after the pending work of the stream */
} fake_stream;

#endif
