// Immediate mode: a handle is readable as soon as a packet has arrived, packets are complete, and a waiting handle
// causes hardly any wake-ups. The output must be the same with both libraries.
//
// immediate TAP PEER
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <pcap/pcap.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 301, KIND = 0x88b5, LARGE = 60000 };

static char errbuf[PCAP_ERRBUF_SIZE];
static int peer;
static pcap_t *p;

static long nanos(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

static int raw(int headed) {
    int fd = socket(AF_PACKET, SOCK_RAW, 0);
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_ifindex = peer};
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address)) { perror("raw"); exit(1); }
    if (headed && setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &headed, sizeof headed)) { perror("vnet"); exit(1); }
    return fd;
}

// A frame has arrived when send(2) returns, unless a kernel thread receives it instead. The handle is readable then: it
// waits for neither a timer nor more packets.
static void at_once(void) {
    int fd = raw(0), readable = 0, got = 0;
    unsigned char frame[60] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, KIND >> 8, KIND & 255};
    struct pollfd polled = {.fd = pcap_get_selectable_fd(p), .events = POLLIN};
    for (int round = 0; round < ROUNDS; round++) {
        if (send(fd, frame, sizeof frame, 0) < 0) perror("send");
        readable += poll(&polled, 1, 0) == 1;
        struct pcap_pkthdr *header;
        const unsigned char *data;
        int status;
        do status = pcap_next_ex(p, &header, &data);
        while (status == 0 || (status == 1 && (header->caplen < 60 || data[12] != KIND >> 8)));
        if (status < 0) { printf("next_ex: %d %s\n", status, pcap_geterr(p)); break; }
        got++;
        usleep(1000);
    }
    fprintf(stderr, "readable at once: %d of %d\n", readable, ROUNDS);
    printf("%d packets, most of them at once: %d\n", got, readable > ROUNDS / 2);
    close(fd);
}

static void none(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *data) { (void)user; (void)header; (void)data; }
static void on_alarm(int number) { (void)number; pcap_breakloop(p); }

static void idle(void) {
    struct rusage before, after;
    signal(SIGALRM, on_alarm);
    alarm(2);
    getrusage(RUSAGE_SELF, &before);
    int status = pcap_loop(p, -1, none, NULL);
    getrusage(RUSAGE_SELF, &after);
    fprintf(stderr, "idle: %ld wake-ups in 2 s\n", after.ru_nvcsw - before.ru_nvcsw);
    printf("loop: %d, fewer than 10 wake-ups in 2 s: %d\n", status, after.ru_nvcsw - before.ru_nvcsw < 10);
}

// Packets merged by offloads, longer than any frame on the wire.
static void large(void) {
    static unsigned char bytes[sizeof(struct virtio_net_hdr) + LARGE];
    struct virtio_net_hdr head = {.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM, .gso_type = VIRTIO_NET_HDR_GSO_TCPV4,
                                  .hdr_len = 54, .gso_size = 1448, .csum_start = 34, .csum_offset = 16};
    unsigned char *frame = bytes + sizeof head;
    for (int n = 0; n < LARGE; n++) frame[n] = n * 7 + n / 256;
    memcpy(bytes, &head, sizeof head);
    memcpy(frame, "\x02\0\0\0\0\x01\x02\0\0\0\0\x02\x08\0\x45\0", 16);
    frame[16] = (LARGE - 14) >> 8; frame[17] = (LARGE - 14) & 255;
    memcpy(frame + 18, "\0\0\0\0\x40\x06\0\0\xc6\x12\0\1\xc6\x13\0\1", 16);
    frame[46] = 0x50;
    int fd = raw(1), whole = 0;
    for (int n = 0; n < 20; n++) {
        if (send(fd, bytes, sizeof bytes, 0) < 0) perror("send large");
        struct pcap_pkthdr *header;
        const unsigned char *data;
        for (long end = nanos() + 1000000000L; nanos() < end;) {
            if (pcap_next_ex(p, &header, &data) != 1 || header->len < LARGE) continue;
            whole += header->caplen == LARGE && header->len == LARGE && !memcmp(data + 54, frame + 54, LARGE - 54);
            break;
        }
    }
    printf("large packets: %d of 20 are whole\n", whole);
    close(fd);
}

static void burst(int count) {
    int fd = raw(0), got = 0;
    unsigned char frame[60] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, KIND >> 8, KIND & 255};
    for (int n = 0; n < count; n++) if (send(fd, frame, sizeof frame, 0) < 0) perror("send");
    pcap_setnonblock(p, 1, errbuf);
    for (int n = 0; n < 10; n++) { int status = pcap_dispatch(p, -1, none, NULL); got += status > 0 ? status : 0; }
    struct pcap_stat stats;
    pcap_stats(p, &stats);
    printf("a burst of %d: got %d, dropped %u\n", count, got, stats.ps_drop);
    pcap_setnonblock(p, 0, errbuf);
    close(fd);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    alarm(60);
    peer = if_nametoindex(argv[2]);
    p = pcap_create(argv[1], errbuf);
    pcap_set_immediate_mode(p, 1);
    pcap_set_promisc(p, 1);
    pcap_set_snaplen(p, 262144);
    int status = pcap_activate(p);
    if (status) { printf("activate: %d %s\n", status, pcap_geterr(p)); return 1; }
    at_once();
    large();
    burst(25);
    idle();
    struct pcap_stat stats;
    pcap_stats(p, &stats);
    printf("received %u, dropped %u\n", stats.ps_recv, stats.ps_drop);
    pcap_close(p);
    return 0;
}
