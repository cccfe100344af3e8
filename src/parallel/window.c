#include "parallel/window.h"

static void insert(ls_window *w, int k, int64_t at, int64_t n)
{
    for (int i = w->n++; i > k; i--) w->live[i] = w->live[i - 1];
    w->live[k].at = at;
    w->live[k].n = n;
}

int64_t ls_window_take(ls_window *w, int64_t n, bool high)
{
    if (w->n == LS_WINDOW_MAX) return -1;
    for (int i = 0; i <= w->n; i++) { /* gap k is before live[k] */
        const int k = high ? w->n - i : i;
        const int64_t begin = k ? w->live[k - 1].at + w->live[k - 1].n : 0;
        const int64_t end = k < w->n ? w->live[k].at : w->capacity;
        if (end - begin < n) continue;
        const int64_t at = high ? end - n : begin;
        insert(w, k, at, n);
        return at;
    }
    return -1;
}

void ls_window_give(ls_window *w, int64_t at)
{
    int k = 0;
    while (k < w->n && w->live[k].at != at) k++;
    LS_ASSERT(k < w->n);
    for (w->n--; k < w->n; k++) w->live[k] = w->live[k + 1];
}
