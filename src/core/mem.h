/* mem.h - every byte the program owns comes from here, counted, and can be made to fail by a test.
 *
 * Memory is 64-byte aligned and zeroed. Large blocks (>= 2 MiB) ask the kernel for huge pages. ls_alloc(0) is a valid
 * one-byte block. */
#ifndef LS_CORE_MEM_H
#define LS_CORE_MEM_H

#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* NULL when memory is out (or a test simulates that); the caller returns ls_nomem(nbytes, "what for"). */
void *ls_alloc(size_t nbytes);
void *ls_realloc(void *p, size_t nbytes); /* on NULL, p is still owned; grown bytes are zero */
char *ls_strdup(const char *s);
char *ls_strndup(const char *s, size_t n);
char *ls_asprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void ls_free(void *p); /* takes NULL */

/* Makes room for n elements of nbytes each. p is the address of the pointer, *cap the elements that fit now; a larger block has room for
 * half as many again, so that appending one by one is cheap. LS_E_NOMEM. */
ls_status ls_reserve(void *p, size_t *cap, size_t n, size_t nbytes, const char *what);
/* The same for lists that count in int: room for element n. false: out of memory, nothing has changed. */
bool ls_grow(void *array, int n, int *cap, size_t size);

/* Reports a failed allocation. */
#define ls_nomem(nbytes, what) ls_fail(LS_E_NOMEM, "cannot allocate %.0f bytes for %s", (double)(nbytes), (what))

/* For tests and for the memory plan. */
int64_t ls_mem_live(void);       /* blocks not freed                     */
int64_t ls_mem_live_bytes(void); /* their bytes                          */
int64_t ls_mem_count(void);      /* allocations since the program start  */
void ls_mem_fail_at(int64_t k);  /* the k-th next allocation fails (0 = the next); -1 = none */

#endif
