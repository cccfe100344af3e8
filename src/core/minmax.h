/* minmax.h - the smaller and the larger of two numbers of one type. An argument is evaluated once or twice: no side effects. */
#ifndef LS_CORE_MINMAX_H
#define LS_CORE_MINMAX_H

#define LS_MIN(a, b) ((a) < (b) ? (a) : (b))
#define LS_MAX(a, b) ((a) > (b) ? (a) : (b))

#endif
