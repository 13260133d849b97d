/* A record processor that only reads and answers: what it costs the machine is next to nothing.

   $KCL_BENCH_NOTES names a folder; its file PID gets a line for each processRecords once it is answered: the sequence
   number and sub-sequence number of the last record ("-" for none), bytes of the line, records (0: not counted), and
   nanoseconds since the epoch. With $KCL_BENCH_COUNT records are counted, which reads each line a second time. With
   $KCL_BENCH_CHECKPOINT it asks for a checkpoint before it answers, but to a lease that is lost. */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static FILE *notes;
static int counting, checkpointing;
static const char SEQUENCE_NUMBER[] = "\"sequenceNumber\":\"", SUB[] = "\"subSequenceNumber\":";

static char *last_of(char *text, size_t size, const char *wanted) {
    size_t length = strlen(wanted);
    for (char *end = text + size; (end = memrchr(text, '"', end - text)) != NULL;)
        if ((size_t)(text + size - end) >= length && memcmp(end, wanted, length) == 0) return end + length;
    return NULL;
}

static long count_of(char *text, size_t size, const char *wanted) {
    long count = 0;
    size_t length = strlen(wanted);
    for (char *end = text + size, *found; (found = memmem(text, end - text, wanted, length)) != NULL; count++)
        text = found + length;
    return count;
}

static void note(char *line, size_t size) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    char *number = last_of(line, size, SEQUENCE_NUMBER), *sub = last_of(line, size, SUB);
    fprintf(notes, "%.*s %ld %zu %ld %lld\n", number ? (int)strcspn(number, "\"") : 1, number ? number : "-",
            sub ? strtol(sub, NULL, 10) : 0, size, counting ? count_of(line, size, SEQUENCE_NUMBER) : 0,
            now.tv_sec * 1000000000LL + now.tv_nsec);
    fflush(notes);
}

static void send_line(const char *line, int length) {
    if (write(1, line, length) != length) exit(1);
}

static void answer(char *line, size_t size) {
    static const char before[] = "{\"action\":\"", checkpoint[] = "{\"action\":\"checkpoint\"}\n";
    static char waiting[32] = "", *waiting_line = NULL;
    static size_t waiting_size = 0;
    char name[32] = "", status[128];
    if (size < sizeof before || memcmp(line, before, sizeof before - 1) != 0) return;
    sscanf(line + sizeof before - 1, "%31[A-Za-z]", name);
    int is_checkpoint = strcmp(name, "checkpoint") == 0;
    if (checkpointing && !is_checkpoint && strcmp(name, "initialize") != 0 && strcmp(name, "leaseLost") != 0) {
        strcpy(waiting, name);
        free(waiting_line);
        waiting_line = memcpy(malloc(size), line, waiting_size = size);
        send_line(checkpoint, sizeof checkpoint - 1);
        return;
    }
    if (is_checkpoint) strcpy(name, waiting), line = waiting_line, size = waiting_size;
    send_line(status, snprintf(status, sizeof status, "{\"action\":\"status\",\"responseFor\":\"%s\"}\n", name));
    if (notes && strcmp(name, "processRecords") == 0) note(line, size);
}

int main(void) {
    const char *folder = getenv("KCL_BENCH_NOTES");
    counting = getenv("KCL_BENCH_COUNT") != NULL;
    checkpointing = getenv("KCL_BENCH_CHECKPOINT") != NULL;
    if (folder) {
        char file[4096];
        snprintf(file, sizeof file, "%s/%ld", folder, (long)getpid());
        if ((notes = fopen(file, "w")) == NULL) return 1;
    }
    size_t room = 1 << 20, size = 0;
    char *line = malloc(room + 1);
    for (ssize_t count; line && (count = read(0, line + size, room - size)) > 0;) {
        char *fresh = line + size, *end;
        size += count;
        while ((end = memchr(fresh, '\n', line + size - fresh)) != NULL) {
            *end = '\0';
            answer(line, end - line);
            size -= end + 1 - line;
            memmove(line, end + 1, size);
            fresh = line;
        }
        if (size == room) line = realloc(line, (room *= 2) + 1);
    }
    return 0;
}
