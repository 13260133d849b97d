/* A record processor that answers, and notes when each record came.

   $KCL_BENCH_NOTES names a folder; its file PID gets a line for each record: nanoseconds of the monotonic clock at which
   the end of its message was read, and its data as it came, in base64. The answer goes first. */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static FILE *notes;

static void answer(const char *line, long long now_ns) {
    static const char before[] = "{\"action\":\"", data[] = "\"data\":\"";
    char name[32] = "", status[128];
    if (strncmp(line, before, sizeof before - 1) != 0) return;
    sscanf(line + sizeof before - 1, "%31[A-Za-z]", name);
    int length = snprintf(status, sizeof status, "{\"action\":\"status\",\"responseFor\":\"%s\"}\n", name);
    if (write(1, status, length) != length) exit(1);
    for (const char *found = line; (found = strstr(found, data)) != NULL;) {
        found += sizeof data - 1;
        fprintf(notes, "%lld %.*s\n", now_ns, (int)strcspn(found, "\""), found);
    }
    fflush(notes);
}

int main(void) {
    char file[4096];
    snprintf(file, sizeof file, "%s/%ld", getenv("KCL_BENCH_NOTES"), (long)getpid());
    if ((notes = fopen(file, "w")) == NULL) return 1;
    size_t room = 1 << 16, size = 0;
    char *line = malloc(room + 1);
    for (ssize_t count; line && (count = read(0, line + size, room - size)) > 0;) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        char *fresh = line + size, *end;
        size += count;
        while ((end = memchr(fresh, '\n', line + size - fresh)) != NULL) {
            *end = '\0';
            answer(line, now.tv_sec * 1000000000LL + now.tv_nsec);
            size -= end + 1 - line;
            memmove(line, end + 1, size);
            fresh = line;
        }
        if (size == room) line = realloc(line, (room *= 2) + 1);
    }
    return 0;
}
