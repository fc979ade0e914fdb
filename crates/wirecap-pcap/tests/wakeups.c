// How often a process with an open handle wakes while packets arrive.
//
// wakeups CAPTURED SENT FRAMES PAUSE_MICROS unread: the handle is not read. Prints how many threads the process has, whether
// any of them woke (without the program's own sleep), and whether all packets were received or dropped.
// wakeups CAPTURED SENT FRAMES PAUSE_MICROS read: pcap_loop reads it. Prints whether packets were read, and whether the process
// woke more often than the packets and the timeout of the handle require.
#include <dirent.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <pcap/pcap.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TIMEOUT_MILLIS = 20 };
// Far fewer than the number of times that packets were ready to be read.
enum { BY_CHANCE = 10 };

// How often all threads of the process have slept (voluntary context switches), and how many threads there
// are.
static long turns(int *threads) {
    char path[512], line[256];
    long sum = 0, count;
    *threads = 0;
    DIR *folder = opendir("/proc/self/task");
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_name[0] == '.') continue;
        ++*threads;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *status = fopen(path, "r");
        while (fgets(line, sizeof line, status))
            if (sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1) sum += count;
        fclose(status);
    }
    closedir(folder);
    return sum;
}

static void send_all(const char *device, int frames, int pause_micros) {
    int sender = socket(AF_PACKET, SOCK_RAW, 0);
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(device)};
    unsigned char frame[60];
    memset(frame, 0xff, sizeof frame);
    for (int n = 0; n < frames; n++) {
        sendto(sender, frame, sizeof frame, 0, (struct sockaddr *)&to, sizeof to);
        usleep(pause_micros);
    }
    _exit(0);
}

static pcap_t *p;
static int got;

static void count(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *data) {
    (void)user, (void)header, (void)data;
    got++;
}

static void all_sent(int signal) { (void)signal; pcap_breakloop(p); }

static long millis(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int main(int argc, char **argv) {
    char errbuf[PCAP_ERRBUF_SIZE];
    struct pcap_stat stats;
    int threads;
    if (argc < 6) return 2;
    int frames = atoi(argv[3]), reads = strcmp(argv[5], "read") == 0;
    p = pcap_open_live(argv[1], 65535, 1, TIMEOUT_MILLIS, errbuf);
    if (!p) { printf("%s\n", errbuf); return 1; }
    if (reads) sigaction(SIGCHLD, &(struct sigaction){.sa_handler = all_sent}, NULL);
    long before = turns(&threads), start = millis();
    pid_t child = fork();
    if (child == 0) send_all(argv[2], frames, atoi(argv[4]));
    if (reads) pcap_loop(p, -1, count, NULL);
    // Otherwise the parent sleeps once, until the child ends.
    waitpid(child, NULL, 0);
    long woken = turns(&threads) - before - !reads, timeouts = (millis() - start) / TIMEOUT_MILLIS;
    fprintf(stderr, "woken %ld times, %ld timeouts, got %d\n", woken, timeouts, got);
    if (reads) {
        // At most twice for each packet: when it arrives alone, and when the timeout after it has passed.
        long needed = timeouts < 2 * frames ? timeouts : 2 * frames;
        printf("read %d\nwoken too often %d\n", got > frames / 2, woken > 2 * needed + BY_CHANCE);
    } else {
        pcap_stats(p, &stats);
        printf("threads %d\nwoken %d\nreceived %d\n", threads, woken > BY_CHANCE, stats.ps_recv >= (unsigned)frames);
    }
    pcap_close(p);
    return 0;
}
