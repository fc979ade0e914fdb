// Shared by the test programs: TAP, the interface on which they capture; PEER, the other end of the cable, on which
// they send; and the engine's number.
#include <net/if.h>
#include <netpacket/packet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <wirecap.h>

static const char *tap;
static enum wirecap_engine engine;
static int wire;

static void check(const char *what, int holds) {
    printf("%s: %s\n", holds ? "ok" : "WRONG", what);
    if (!holds) printf("WRONG: the last failure is %d, %s\n", wirecap_error_status(), wirecap_error());
    fflush(stdout);
    alarm(90);
}

static int says(const char *words) { return strstr(wirecap_error(), words) != NULL; }

// Sends frames of 80 bytes; the last byte is the frame's number.
static void emit(int count) {
    unsigned char frame[80] = "\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x08";
    for (int n = 0; n < count; n++) {
        frame[79] = (unsigned char)n;
        if (send(wire, frame, sizeof frame, 0) != sizeof frame) perror("WRONG: send");
    }
}

static void begin(int argc, char **argv) {
    if (argc != 5) exit(2);
    tap = argv[1];
    engine = (enum wirecap_engine)atoi(argv[3]);
    struct sockaddr_ll address = { .sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(argv[2]), .sll_protocol = 0x0300 };
    wire = socket(AF_PACKET, SOCK_RAW, 0x0300);
    if (bind(wire, (struct sockaddr *)&address, sizeof address)) perror("WRONG: bind");
}
