/* replay.c - runs a fuzz target over the files of a corpus folder, without libFuzzer. */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>

static int one(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) return 1;
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    uint8_t *data = malloc(n > 0 ? (size_t)n : 1);
    if (!data || fread(data, 1, (size_t)n, f) != (size_t)n) return 1;
    fclose(f);
    LLVMFuzzerTestOneInput(data, (size_t)n);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    int n = 0, bad = 0;
    DIR *d = argc > 1 ? opendir(argv[1]) : NULL;
    if (!d) {
        fprintf(stderr, "usage: %s CORPUS_DIR\n", argv[0]);
        return 2;
    }
    for (struct dirent *e; (e = readdir(d));) {
        char path[4096];
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        bad += one(path);
        n++;
    }
    closedir(d);
    printf("replayed %d inputs, %d could not be read\n", n, bad);
    return bad || !n;
}
