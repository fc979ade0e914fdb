// Thousands of reads, each interrupted once by a signal at a random moment: before it starts, while it waits
// or rests, or while packets arrive. Every read must end. The output must be the same with both libraries.
//
// breaking CAPTURED SENT READS immediate|blocks
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
#include <unistd.h>

// The longest time until a read is interrupted, and between two frames: several times the handle's timeout of
// 1 ms.
enum { LONGEST_MICROS = 3000 };
// No read takes that long, however busy the machine.
enum { PATIENCE_MICROS = 60 * 1000 * 1000 };

struct shared { atomic_long reads; atomic_int done; };
static struct shared *shared;
static pcap_t *p;
static volatile sig_atomic_t breaks;

static long random_micros(void) { return 1 + random() % LONGEST_MICROS; }

// Sends frames at random moments, and kills the reader if one of its reads does not end.
static void send_and_watch(const char *device, pid_t reader) {
    int sender = socket(AF_PACKET, SOCK_RAW, 0);
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(device)};
    unsigned char frame[60];
    memset(frame, 0xff, sizeof frame);
    srandom(2);
    long seen = -1, waited = 0;
    while (!shared->done && getppid() == reader) {
        if (shared->reads != seen) seen = shared->reads, waited = 0;
        if (waited > PATIENCE_MICROS) {
            printf("read %ld does not end\n", seen);
            kill(reader, SIGKILL);
            break;
        }
        sendto(sender, frame, sizeof frame, 0, (struct sockaddr *)&to, sizeof to);
        long pause = random_micros();
        usleep(pause);
        waited += pause;
    }
    _exit(0);
}

static void on_timer(int number) {
    (void)number;
    breaks++;
    pcap_breakloop(p);
}

static void count(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *data) {
    (void)header, (void)data;
    ++*(long *)user;
}

// Reads until the read is interrupted, with each of the three functions in turn.
static int read_on(long number, long *packets) {
    struct pcap_pkthdr *header;
    const unsigned char *data;
    int status;
    switch (number % 3) {
    case 0: return pcap_loop(p, -1, count, (unsigned char *)packets);
    case 1: do status = pcap_dispatch(p, -1, count, (unsigned char *)packets); while (status >= 0); return status;
    default: while ((status = pcap_next_ex(p, &header, &data)) >= 0) *packets += status; return status;
    }
}

int main(int argc, char **argv) {
    char errbuf[PCAP_ERRBUF_SIZE];
    if (argc < 5 || !(p = pcap_create(argv[1], errbuf))) return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    pcap_set_snaplen(p, 256);
    pcap_set_timeout(p, 1);
    pcap_set_immediate_mode(p, strcmp(argv[4], "immediate") == 0);
    if (pcap_activate(p) < 0) { printf("%s\n", pcap_geterr(p)); return 1; }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t reader = getpid();
    if (fork() == 0) send_and_watch(argv[2], reader);
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = on_timer, .sa_flags = SA_RESTART}, NULL);
    long reads = atol(argv[3]), packets = 0;
    for (long n = 0; n < reads; n++) {
        shared->reads = n;
        struct itimerval once = {.it_value = {0, random_micros()}};
        setitimer(ITIMER_REAL, &once, NULL);
        int status = read_on(n, &packets);
        if (status != PCAP_ERROR_BREAK || breaks != n + 1) {
            printf("read %ld ended with %d after %d breaks\n", n, status, (int)breaks);
            return 1;
        }
    }
    shared->done = 1;
    printf("reads %ld, packets %d\n", reads, packets > 0);
    pcap_close(p);
    return 0;
}
