/* own_folder.h - a temporary folder for each test of a file: make_dir and remove_dir are its setup and teardown. */
#ifndef LS_TESTS_OWN_FOLDER_H
#define LS_TESTS_OWN_FOLDER_H

#include "test_folder.h"

static char *dir;

static inline const char *in_dir(const char *name)
{
    return test_path(dir, name, NULL);
}

static inline int make_dir(void **state)
{
    (void)state;
    dir = test_dir();
    return 0;
}

static inline int remove_dir(void **state)
{
    (void)state;
    test_dir_close(dir);
    return 0;
}

#endif
