/* A program that asks for what a container has of its emulated device, as the emulated driver does, says how many
   descriptors it got, keeps them, and stays. It is built static, so that no limiter can be loaded into it. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* crates/ledger/src/attach/wire.rs */
struct message {
    char magic[8];
    uint32_t version, code;
    unsigned char uuid[16];
};

static int read_uuid(unsigned char *uuid) {
    char text[4096] = "";
    FILE *granted = fopen("/run/divvy/device/granted", "r");
    if (!granted)
        return 0;
    text[fread(text, 1, sizeof text - 1, granted)] = 0;
    fclose(granted);
    char *at = strstr(text, "uuid GPU-");
    if (!at)
        return 0;
    int got = 0;
    for (at += strlen("uuid GPU-"); got < 16 && *at; at++) {
        unsigned byte;
        if (*at == '-')
            continue;
        if (sscanf(at++, "%2x", &byte) != 1)
            return 0;
        uuid[got++] = byte;
    }
    return got == 16;
}

int main(void) {
    struct message request = {.magic = {'D', 'V', 'Y', 'A', 'T', 'T', 'C', 'H'}, .version = PAGE_ABI_VERSION, .code = 7};
    struct sockaddr_un place = {.sun_family = AF_UNIX, .sun_path = "/run/divvy/device/pages/pages.sock"};
    char answer[32], room[256];
    struct iovec bytes = {answer, sizeof answer};
    struct msghdr reply = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    int opened = 0, holder = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (read_uuid(request.uuid) && connect(holder, (struct sockaddr *)&place, sizeof place) == 0 &&
        write(holder, &request, sizeof request) == sizeof request && recvmsg(holder, &reply, 0) == sizeof answer)
        for (struct cmsghdr *part = CMSG_FIRSTHDR(&reply); part; part = CMSG_NXTHDR(&reply, part))
            opened += (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    printf("opened %d\n", opened);
    fflush(stdout);
    sleep(600);
    return 0;
}
