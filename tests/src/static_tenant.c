/* A static program that takes memory and time of an emulated device as the driver's library does: in the device's own
   figures, and with nothing of Divvy's in it. Its arguments: the socket at which the device's pages are given out, the
   device's UUID, how many MiB it takes, and `spin` if its kernel is to run on and on, or `leave` if a child keeps what it
   takes behind its end. On a GPU such a program would open the device's nodes by itself. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* crates/ledger/src/layout.rs */
#if PAGE_ABI_VERSION != 6
#error "the places below are those of another version"
#endif
enum { USE = 64, SLOTS = 4096, SLOT = 576, COUNT = 2048, HIGH_WATER = 20, UNIT = 512, SHIFT = 26 };
struct slot {
    uint32_t claimed, pid, host_pid, calls;
    uint64_t claimed_at_ns, gathered, spill_gathered, waiting_since_ns, unused[2];
    uint64_t busy, state, amount[2];
};

/* crates/ledger/src/attach/wire.rs */
struct message {
    char magic[8];
    uint32_t version, code;
    unsigned char uuid[16];
};

/* crates/device/src/engine/page.rs */
#if ENGINE_ABI != 1
#error "the places below are those of another version"
#endif
enum { PLACES = 256, JOBS = 8, WHOLE = 10000 };
enum state { FREE, OPEN, POLLING, CLOSED, DONE };
static const uint64_t PLACE_LOCKS = 1ull << 32, LAG = 30000000, SLICE = 2000000;
struct job {
    uint64_t number, state, ready, extent, consumed, end, touched, width;
};
struct place {
    uint64_t pid, busy, busy_since, joined, server, share, partition, fault, unused[24], samples[32];
    struct job jobs[JOBS];
};
struct engine {
    uint64_t magic, abi, lock, cursor, owner, slice_end, slice, leap, retired, top, idle_wanted, unused[501];
    struct place places[PLACES];
};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

/* The first job of a place that waits. */
static struct job *head(struct place *place) {
    struct job *first = 0;
    for (int n = 0; place->pid && n < JOBS; n++) {
        struct job *job = &place->jobs[n];
        if (job->state >= OPEN && job->state <= CLOSED && (!first || job->number < first->number))
            first = job;
    }
    return first;
}

/* Deals the engine out up to now, as crates/device/src/engine/schedule.rs does where there is no MPS. */
static void advance(struct engine *engine, uint64_t now, uint64_t real) {
    uint64_t oldest = now - 50 * LAG, late = now - LAG;
    if (engine->cursor < oldest || engine->cursor > now)
        engine->cursor = engine->cursor > now ? now : oldest;
    for (int step = 0; step < 20000 && engine->cursor < now; step++) {
        uint64_t at = engine->cursor, most = 0, next = now, turn = engine->owner + (at >= engine->slice_end);
        struct job *job = 0;
        uint32_t index = 0;
        for (uint32_t n = 0; n < PLACES && !job; n++) {
            struct job *first = head(&engine->places[index = (turn + n) % PLACES]);
            if (!first)
                continue;
            int alive = real - first->touched < LAG;
            if (first->ready > at)
                next = first->ready < next ? first->ready : next;
            else if (first->state == CLOSED || (first->state == OPEN && first->extent > first->consumed))
                job = first, most = first->extent - first->consumed;
            else if (first->state == POLLING && alive)
                job = first, most = UINT64_MAX;
            else if (first->state == OPEN && alive && late <= at)
                return; /* How long it lasts is not known yet. */
            else if (first->state == OPEN && alive)
                job = first, most = late - at;
        }
        if (!job) {
            engine->cursor = next;
            continue;
        }
        if (engine->owner != index || at >= engine->slice_end) {
            engine->owner = index;
            engine->slice_end = at + (engine->slice ? engine->slice : SLICE);
        }
        uint64_t run = engine->slice_end - at < now - at ? engine->slice_end - at : now - at;
        run = most < run ? most : run;
        engine->cursor += run;
        engine->places[index].busy += run;
        job->consumed += run;
        if (job->state == CLOSED && job->consumed >= job->extent) {
            job->end = engine->cursor;
            job->state = DONE;
        } else if (!run)
            return;
    }
}

/* Has a kernel on the device that never ends. */
static void spin(int file) {
    struct stat seen;
    struct engine *engine = file < 0 || fstat(file, &seen) || seen.st_size != sizeof *engine
                                ? MAP_FAILED
                                : mmap(0, sizeof *engine, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    struct place *own = 0;
    for (uint32_t index = 0; engine != MAP_FAILED && index < PLACES && !own; index++) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = PLACE_LOCKS + index, .l_len = 1};
        if (engine->places[index].pid || fcntl(file, F_OFD_SETLK, &lock))
            continue;
        own = &engine->places[index];
        if (engine->top < index + 1)
            engine->top = index + 1;
        own->jobs[0] = (struct job){.number = 1, .state = POLLING, .touched = now_ns(), .width = WHOLE};
        own->jobs[0].ready = own->joined = now_ns() + engine->leap;
        __atomic_store_n(&own->pid, getpid(), __ATOMIC_SEQ_CST);
    }
    if (!own)
        _exit(4);
    for (uint64_t ticket = (uint64_t)getpid() << 32 | 1;; usleep(1000)) {
        uint64_t free = 0, since = now_ns();
        own->jobs[0].touched = since;
        /* It is taken away from one that is stopped. */
        while (!__atomic_compare_exchange_n(&engine->lock, &free, ticket, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            if (now_ns() - since < 60000000)
                free = 0;
            sched_yield();
        }
        advance(engine, now_ns() + engine->leap, now_ns());
        free = ticket;
        __atomic_compare_exchange_n(&engine->lock, &free, 0, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }
}

/* Where the device's pages are: its ledger, and its engine's. */
static int pages_of(const char *path, const char *uuid, int pages[2]) {
    struct message request = {.magic = {'D', 'V', 'Y', 'A', 'T', 'T', 'C', 'H'}, .version = PAGE_ABI_VERSION, .code = 7};
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    char answer[32], room[256];
    struct iovec bytes = {answer, sizeof answer};
    struct msghdr reply = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    int got = 0, holder = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (const char *at = strchr(uuid, '-'); at && got < 16 && *at; at++) {
        unsigned byte;
        if (*at == '-')
            continue;
        if (sscanf(at++, "%2x", &byte) != 1)
            return -1;
        request.uuid[got++] = byte;
    }
    strncpy(place.sun_path, path, sizeof place.sun_path - 1);
    if (connect(holder, (struct sockaddr *)&place, sizeof place) || write(holder, &request, sizeof request) < 0 ||
        recvmsg(holder, &reply, 0) != sizeof answer || !CMSG_FIRSTHDR(&reply))
        return -1;
    memcpy(pages, CMSG_DATA(CMSG_FIRSTHDR(&reply)), 2 * sizeof *pages);
    return 0;
}

int main(int count, char **words) {
    int pages[2], file = count >= 4 && !pages_of(words[1], words[2], pages) ? pages[0] : -1;
    uint64_t units = count >= 4 ? (strtoull(words[3], 0, 10) << 20) / UNIT : 0;
    struct stat seen;
    struct timespec now;
    char *page = file < 0 || fstat(file, &seen) ? MAP_FAILED
                                                : mmap(0, seen.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED)
        return 2;
    for (uint32_t index = 0; index < COUNT; index++) {
        struct slot *slot = (struct slot *)(page + SLOTS + (size_t)index * SLOT);
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = index, .l_len = 1};
        if (slot->claimed || fcntl(file, F_OFD_SETLK, &lock))
            continue;
        uint32_t *high = (uint32_t *)(page + HIGH_WATER);
        if (*high < index + 1)
            *high = index + 1;
        clock_gettime(CLOCK_REALTIME, &now);
        slot->pid = slot->host_pid = getpid();
        slot->claimed_at_ns = now.tv_sec * 1000000000ull + now.tv_nsec;
        slot->amount[slot->state >> 1 & 1] = units;
        __atomic_fetch_add((uint64_t *)(page + USE), units << SHIFT, __ATOMIC_SEQ_CST);
        __atomic_store_n(&slot->claimed, 1, __ATOMIC_SEQ_CST);
        printf("{\"pid\": %d, \"error\": 0}\n", getpid());
        fflush(stdout);
        if (count == 5 && !strcmp(words[4], "spin"))
            spin(pages[1]);
        /* The lock that says that it lives belongs to the open file, and that is the child's as well. */
        if (count == 5 && !strcmp(words[4], "leave"))
            fork();
        pause();
    }
    return 3;
}
