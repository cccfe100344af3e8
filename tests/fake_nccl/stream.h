/* stream.h - what a stream of the device's double is to a library that queues work on it itself (fake_nccl.c). */
#ifndef LS_TESTS_FAKE_STREAM_H
#define LS_TESTS_FAKE_STREAM_H

typedef struct fake_stream {
    void (*queue)(struct fake_stream *s, void (*call)(void *), void *arg); /* call(arg) after what the stream holds */
} fake_stream;

#endif
