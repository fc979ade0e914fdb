// Handles of processes that fork: the parent continues, or the child, or both. The output must be the same
// with both libraries.
//
// forks TAP PEER both|alone|immediate      alone: without the cases in which both processes read at the same time or in
// turn; immediate: handles in immediate mode
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <pcap/pcap.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 20000, FIRST_KIND = 0x88b5, KINDS = 16 };

static const char *tap;
static int immediate;
static int wire;
static char errbuf[PCAP_ERRBUF_SIZE];
// How often each process has seen each frame, in shared memory.
static unsigned char (*seen)[MOST];
static volatile int *turn;
// The EtherType of all frames.
static int kind;

static long millis(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void emit(int from, int to) {
    unsigned char frame[60] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, kind >> 8, kind & 255};
    for (int number = from; number < to; number++) {
        memcpy(frame + 14, &number, sizeof number);
        if (send(wire, frame, sizeof frame, 0) != sizeof frame) perror("send");
    }
}

struct side { int who, count; };

static void see(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *data) {
    struct side *side = (struct side *)user;
    int number;
    if (header->caplen < 18 || data[12] != kind >> 8 || data[13] != (kind & 255)) return;
    memcpy(&number, data + 14, sizeof number);
    seen[side->who][number]++;
    side->count++;
}

static pcap_t *open_tap(void) {
    memset(seen, 0, 2 * sizeof *seen);
    *turn = 0;
    pcap_t *p = pcap_create(tap, errbuf);
    if (!p) { printf("%s\n", errbuf); exit(1); }
    pcap_set_snaplen(p, 96);
    pcap_set_promisc(p, 1);
    pcap_set_timeout(p, 10);
    pcap_set_immediate_mode(p, immediate);
    if (pcap_activate(p) < 0) { printf("%s\n", pcap_geterr(p)); exit(1); }
    return p;
}

// Reads for a while; returns the number of packets.
static int read_for(pcap_t *p, int who, int time) {
    struct side side = {who, 0};
    pcap_setnonblock(p, 1, errbuf);
    for (long end = millis() + time; millis() < end; usleep(2000)) {
        int status = pcap_dispatch(p, -1, see, (unsigned char *)&side);
        if (status < 0) { printf("  dispatch: %d %s\n", status, pcap_geterr(p)); break; }
    }
    return side.count;
}

static int all_seen(int from, int to) {
    int count = 0;
    for (int n = from; n < to; n++) count += seen[0][n] || seen[1][n];
    return count;
}

static void see_kind(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *data) {
    int number = (data[12] << 8 | data[13]) - FIRST_KIND;
    if (header->caplen >= 14 && number >= 0 && number < KINDS) user[number] = 1;
}

// A handle of a group reads one of several rings, and the kernel selects the ring by a hash with a secret
// key: finds an EtherType whose frames arrive on the ring of this handle.
static void choose_kind(void) {
    unsigned char arrived[KINDS] = {0};
    pcap_t *p = open_tap();
    for (int number = 0; number < KINDS; number++) {
        kind = FIRST_KIND + number;
        emit(0, 1);
    }
    pcap_setnonblock(p, 1, errbuf);
    for (long end = millis() + 400; millis() < end; usleep(2000)) pcap_dispatch(p, -1, see_kind, arrived);
    pcap_close(p);
    for (int number = KINDS - 1; number >= 0; number--) if (arrived[number]) kind = FIRST_KIND + number;
}

static void wait_for_turn(int number) { for (long end = millis() + 20000; *turn < number && millis() < end;) usleep(1000); }

static void join(pid_t child) {
    int status;
    waitpid(child, &status, 0);
    printf("  child: %s %d\n", WIFSIGNALED(status) ? "signal" : "exit", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static void child_closes(int explicitly) {
    printf("== the child %s, the parent reads\n", explicitly ? "closes" : "exits");
    pcap_t *p = open_tap();
    emit(0, 10);
    pid_t child = fork();
    if (child == 0) {
        if (explicitly) pcap_close(p);
        _exit(0);
    }
    join(child);
    emit(10, 110);
    int count = read_for(p, 0, 400);
    struct pcap_stat stats;
    pcap_stats(p, &stats);
    printf("  read %d, all: %d, stats %u %u\n", count, all_seen(0, 110), stats.ps_recv, stats.ps_drop);
    pcap_close(p);
}

static void parent_closes(void) {
    printf("== the parent closes, the child reads\n");
    pcap_t *p = open_tap();
    emit(0, 10);
    pid_t child = fork();
    if (child == 0) {
        wait_for_turn(1);
        emit(10, 110);
        int count = read_for(p, 1, 400);
        pcap_close(p);
        _exit(count == 110 ? 7 : 1);
    }
    pcap_close(p);
    *turn = 1;
    join(child);
    printf("  all: %d\n", all_seen(0, 110));
}

static void parent_reads_first(void) {
    printf("== the parent reads some, then the child\n");
    pcap_t *p = open_tap();
    emit(0, 100);
    int first = read_for(p, 0, 300);
    pid_t child = fork();
    if (child == 0) {
        emit(100, 200);
        int count = read_for(p, 1, 300);
        pcap_close(p);
        _exit(count == 100 ? 7 : 1);
    }
    join(child);
    printf("  read %d, all: %d\n", first, all_seen(0, 200));
    pcap_close(p);
}

// The parent has read one packet of several that arrived together, which both processes have then.
static void fork_among_packets(void) {
    printf("== a fork among packets\n");
    pcap_t *p = open_tap();
    emit(0, 10);
    struct side side = {0, 0};
    while (side.count < 1) pcap_dispatch(p, 1, see, (unsigned char *)&side);
    pid_t child = fork();
    if (child == 0) {
        int count = read_for(p, 1, 300);
        pcap_close(p);
        _exit(count == 9 ? 7 : 1);
    }
    join(child);
    printf("  read %d, all: %d\n", side.count, all_seen(0, 10));
    pcap_close(p);
}

static void one_after_the_other(void) {
    printf("== the child reads some and closes, then the parent reads\n");
    pcap_t *p = open_tap();
    pid_t child = fork();
    if (child == 0) {
        emit(0, 2000);
        int count = read_for(p, 1, 300);
        pcap_close(p);
        _exit(count == 2000 ? 7 : 1);
    }
    join(child);
    // Often enough for the ring to wrap around to the parent's position.
    for (int n = 0; n < 170; n++) { emit(2000 + n * 100, 2100 + n * 100); read_for(p, 0, 30); }
    int count = read_for(p, 0, 300);
    printf("  read %d, all: %d\n", count > 0 || all_seen(2000, 19000) > 0, all_seen(0, 2000));
    pcap_close(p);
}

// Reads until all frames are sent, and then for a while.
static void read_all(pcap_t *p, int who) {
    while (!*turn) read_for(p, who, 20);
    read_for(p, who, 400);
}

static void both_read(void) {
    printf("== both read\n");
    pcap_t *p = open_tap();
    pid_t child = fork();
    if (child == 0) {
        read_all(p, 1);
        pcap_close(p);
        _exit(7);
    }
    pid_t sender = fork();
    if (sender == 0) {
        for (int n = 0; n < 100; n++) { emit(n * 100, n * 100 + 100); usleep(15000); }
        *turn = 1;
        _exit(7);
    }
    read_all(p, 0);
    join(child);
    join(sender);
    read_for(p, 0, 400);
    printf("  all: %d\n", all_seen(0, 10000));
    pcap_close(p);
}

static void reads_in_both(void) {
    printf("== the child reads first, then the parent\n");
    pcap_t *p = open_tap();
    pid_t child = fork();
    if (child == 0) {
        emit(0, 100);
        int count = read_for(p, 1, 300);
        pcap_close(p);
        _exit(count == 100 ? 7 : 1);
    }
    join(child);
    emit(100, 200);
    printf("  read %d\n", read_for(p, 0, 300));
    pcap_close(p);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    alarm(100);
    tap = argv[1];
    immediate = !strcmp(argv[3], "immediate");
    wire = socket(AF_PACKET, SOCK_RAW, 0);
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(argv[2])};
    if (bind(wire, (struct sockaddr *)&address, sizeof address)) { perror("bind"); return 1; }
    seen = mmap(NULL, 2 * sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    turn = mmap(NULL, sizeof *turn, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    choose_kind();
    child_closes(1);
    child_closes(0);
    parent_closes();
    parent_reads_first();
    fork_among_packets();
    if (!strcmp(argv[3], "alone")) { reads_in_both(); return 0; }
    one_after_the_other();
    both_read();
    return 0;
}
