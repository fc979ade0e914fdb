// A flood, pcap_loop, and a timer of 1 ms whose handler calls pcap_stats and pcap_breakloop, as tcpdump does
// from SIGUSR1 and SIGINT, and in the end pcap_close, as ngrep does. The output must be the same with both
// libraries.
//
// signals TAP PEER MILLISECONDS
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <pcap/pcap.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BURST = 32, BYTES = 60, KIND = 0x88b5 };

struct shared { atomic_long sent; atomic_int stop; };
static struct shared *shared;
static pcap_t *volatile handle;
static volatile sig_atomic_t closing;
static volatile long got, stats_calls, stats_failures, steps_back, beyond;
static struct pcap_stat last;

static long millis(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// Sends until it is told to stop, and kills the parent if that does not end by itself.
static void flood(const char *peer, long duration, pid_t parent) {
    int wire = socket(AF_PACKET, SOCK_RAW, 0);
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(peer)};
    if (wire < 0 || bind(wire, (struct sockaddr *)&address, sizeof address)) { perror("bind"); _exit(1); }
    unsigned char frame[BYTES] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, KIND >> 8, KIND & 255};
    struct iovec part = {frame, BYTES};
    struct mmsghdr messages[BURST];
    memset(messages, 0, sizeof messages);
    for (int n = 0; n < BURST; n++) messages[n].msg_hdr = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1};
    long end = millis() + duration + 20000;
    while (!shared->stop && getppid() == parent && millis() < end) {
        int sent = sendmmsg(wire, messages, BURST, 0);
        if (sent > 0) shared->sent += sent;
    }
    shared->stop = 2;
    while (millis() < end) {
        if (getppid() != parent) _exit(0);
        usleep(10000);
    }
    if (write(1, "hung\n", 5) > 0) kill(parent, SIGKILL);
    _exit(1);
}

static void on_timer(int number) {
    (void)number;
    pcap_t *p = handle;
    if (!p) return;
    struct pcap_stat now;
    stats_calls++;
    if (pcap_stats(p, &now)) stats_failures++;
    else {
        if ((int)(now.ps_recv - last.ps_recv) < 0 || (int)(now.ps_drop - last.ps_drop) < 0) steps_back++;
        // Packets that were not sent yet cannot have arrived. The sender may not have counted its last burst
        // yet.
        if ((long)now.ps_recv > shared->sent + BURST) beyond++;
        last = now;
    }
    if (closing) {
        pcap_close(p);
        static const char done[] = "close in a handler: done\n";
        _exit(write(1, done, sizeof done - 1) < 0);
    }
    if (stats_calls % 8 == 0) pcap_breakloop(p);
}

static void count(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *data) {
    (void)user; (void)header; (void)data;
    got++;
}

int main(int argc, char **argv) {
    char errbuf[PCAP_ERRBUF_SIZE];
    if (argc < 4) return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    long duration = atol(argv[3]);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pcap_t *p = pcap_open_live(argv[1], 96, 1, 10, errbuf);
    if (!p) { printf("%s\n", errbuf); return 1; }
    struct bpf_program program;
    if (pcap_compile(p, &program, "ether proto 0x88b5", 1, 0) || pcap_setfilter(p, &program)) { printf("%s\n", pcap_geterr(p)); return 1; }
    pcap_freecode(&program);
    pid_t parent = getpid(), sender = fork();
    if (sender == 0) flood(argv[2], duration, parent);
    handle = p;
    struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &every, NULL);
    long end = millis() + duration, breaks = 0, others = 0;
    while (millis() < end) if (pcap_loop(p, -1, count, NULL) == PCAP_ERROR_BREAK) breaks++; else others++;
    shared->stop = 1;
    while (shared->stop == 1) usleep(1000);
    // Longer than the kernel keeps any block.
    for (long until = millis() + 300; millis() < until;) pcap_loop(p, -1, count, NULL);
    handle = NULL;
    struct pcap_stat stats;
    printf("stats: %d\n", pcap_stats(p, &stats));
    printf("handlers called it often enough: %d, it failed: %ld, went back: %ld, ran ahead: %ld\n",
           stats_calls > duration / 20, stats_failures, steps_back, beyond);
    printf("loop was broken off: %d\n", breaks > duration / 200);
    printf("all sent are counted: %d, got or dropped: %d\n", stats.ps_recv == (unsigned)shared->sent,
           (unsigned)got + stats.ps_drop == stats.ps_recv);
    fprintf(stderr, "sent %ld got %ld recv %u drop %u, %ld calls, %ld breaks, %ld other ends\n", (long)shared->sent, got, stats.ps_recv,
            stats.ps_drop, stats_calls, breaks, others);
    // Again under load; now the handler closes the handle.
    shared->stop = 0;
    sender = fork();
    if (sender == 0) flood(argv[2], duration, parent);
    handle = p;
    long half = millis() + 100;
    for (;;) {
        pcap_loop(p, -1, count, NULL);
        if (millis() > half) closing = 1;
    }
}
