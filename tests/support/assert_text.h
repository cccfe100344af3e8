/* assert_text.h - checks of messages and other text. */
#ifndef LS_TESTS_ASSERT_TEXT_H
#define LS_TESTS_ASSERT_TEXT_H

#include "cmocka_all.h"
#include "core/err.h"

#include <string.h>

/* `text` contains `part`; NULL contains nothing. */
#define assert_contains(text, part)                                                                                   \
    do {                                                                                                              \
        const char *text_ = (text), *part_ = (part);                                                                  \
        if (!text_ || !strstr(text_, part_)) fail_msg("'%s' is not in: %.2000s", part_, text_ ? text_ : "(no text)"); \
    } while (0)

/* The message of the last error contains `part`. */
#define assert_words(part) assert_contains(ls_err_words(), part)

#endif
