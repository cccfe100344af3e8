#include "fake_cuda/fiber.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define EMU_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define EMU_TSAN 1
#endif
#endif

#ifdef EMU_ASAN
#include <sanitizer/common_interface_defs.h>
#define STACK_BYTES ((size_t)1 << 19)
#else
#define STACK_BYTES ((size_t)1 << 17)
#endif
#ifdef EMU_TSAN
#include <sanitizer/tsan_interface.h>
#endif

/* emu_swap(&save, to): keeps the callee-saved registers and the stack in *save and continues where `to` was saved. */
#if defined(__aarch64__)
extern "C" void emu_swap(void **save, void *to);
asm(".text\n.p2align 2\n.globl emu_swap\n.hidden emu_swap\n.type emu_swap, %function\nemu_swap:\n"
    "sub sp, sp, #160\n"
    "stp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
    "stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
    "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
    "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\n"
    "add sp, sp, #160\nret\n.size emu_swap, .-emu_swap\n");
#define KEPT      20 /* words on the stack            */
#define RETURN_AT 11 /* the return address           */
#elif defined(__x86_64__)
extern "C" void emu_swap(void **save, void *to);
asm(".text\n.p2align 4\n.globl emu_swap\n.hidden emu_swap\n.type emu_swap, @function\nemu_swap:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n.size emu_swap, .-emu_swap\n");
#define KEPT      8 /* six registers, the return address, and one for the ABI's stack alignment at a function's entry */
#define RETURN_AT 6
#else
#include <ucontext.h>
#define EMU_UCONTEXT 1
#endif

struct emu_fiber {
#ifdef EMU_UCONTEXT
    ucontext_t self;
#else
    void *self;
#endif
    void (*entry)(void *);
    void *arg;
    const void *stack;
    size_t nbytes;
#ifdef EMU_ASAN
    void *fake;
#endif
#ifdef EMU_TSAN
    void *tsan;
#endif
};

static emu_fiber host;            /* the stack that kernels are started on       */
static emu_fiber *left, *entered; /* by the last switch                          */

/* On the new stack, after a switch. */
static void arrive(bool first)
{
#ifdef EMU_ASAN
    const void *stack;
    size_t nbytes;
    __sanitizer_finish_switch_fiber(first ? nullptr : entered->fake, &stack, &nbytes);
    if (left == &host) host.stack = stack, host.nbytes = nbytes;
#else
    (void)first;
#endif
}

static void begin()
{
    emu_fiber *f = entered;
    arrive(true);
    f->entry(f->arg);
    abort();
}

emu_fiber *fiber_make(void (*entry)(void *), void *arg)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    emu_fiber *f = new emu_fiber();
    f->entry = entry;
    f->arg = arg;
    void *m =
        mmap(nullptr, STACK_BYTES + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED || mprotect(m, page, PROT_NONE) != 0) {
        perror("emulator: cannot allocate the stack of a thread");
        abort();
    }
    f->stack = (char *)m + page;
    f->nbytes = STACK_BYTES;
#ifdef EMU_UCONTEXT
    getcontext(&f->self);
    f->self.uc_stack.ss_sp = (char *)m + page;
    f->self.uc_stack.ss_size = STACK_BYTES;
    f->self.uc_link = nullptr;
    makecontext(&f->self, begin, 0);
#else
    /* Stacks begin at different places of a page: at the same one, all lanes of a warp use the same sets of the first cache. */
    static unsigned n_made;
    void **top = (void **)((char *)m + page + STACK_BYTES - n_made++ % 32 * 704) - KEPT;
    top[RETURN_AT] = (void *)begin;
    f->self = top;
#endif
#ifdef EMU_TSAN
    f->tsan = __tsan_create_fiber(0);
#endif
    return f;
}

void fiber_switch(emu_fiber *from, emu_fiber *to)
{
    left = from ? from : &host;
    entered = to ? to : &host;
#ifdef EMU_TSAN
    if (!from) host.tsan = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(entered->tsan, 0);
#endif
#ifdef EMU_ASAN
    __sanitizer_start_switch_fiber(&left->fake, entered->stack, entered->nbytes);
#endif
#ifdef EMU_UCONTEXT
    swapcontext(&left->self, &entered->self);
#else
    emu_swap(&left->self, entered->self);
#endif
    arrive(false);
}
