// The cost of a handle that is opened only for its counters, as Wireshark's start page does for every
// interface.
//
// cost DEVICE SNAPLEN: prints the descriptors of a handle, the KiB of its rings, and the interface's
// promiscuity counter; then the system calls for opening a handle, and the bytes that these receive.
#include <dirent.h>
#include <pcap/pcap.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int descriptors(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

static long ring_kib(void) {
    char line[4096];
    unsigned long from, to, sum = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "socket:") && sscanf(line, "%lx-%lx", &from, &to) == 2) sum += to - from;
    fclose(maps);
    return sum / 1024;
}

static int promiscuity(const char *device) {
    char command[128], line[4096];
    snprintf(command, sizeof command, "ip -d link show dev %s", device);
    FILE *said = popen(command, "r");
    int count = -1;
    while (fgets(line, sizeof line, said)) {
        char *word = strstr(line, "promiscuity ");
        if (word) count = atoi(word + 12);
    }
    pclose(said);
    return count;
}

static pcap_t *open_handle(char **argv) {
    char errbuf[PCAP_ERRBUF_SIZE];
    pcap_t *p = pcap_open_live(argv[1], atoi(argv[2]), 1, 100, errbuf);
    if (!p) { printf("%s\n", errbuf); exit(1); }
    return p;
}

static int receives(long call) { return call == SYS_read || call == SYS_recvfrom || call == SYS_recvmsg; }

// Counts the system calls for opening a handle, in a traced child.
static void count_calls(char **argv) {
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        open_handle(argv);
        _exit(0);
    }
    long calls = 0, bytes = 0, call = -1;
    int status;
    waitpid(child, &status, 0);
    ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    for (int signal = 0;; ) {
        ptrace(PTRACE_SYSCALL, child, NULL, signal);
        if (waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status)) break;
        signal = WSTOPSIG(status) == (SIGTRAP | 0x80) ? 0 : WSTOPSIG(status);
        if (signal) continue;
        struct __ptrace_syscall_info info;
        ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof info, &info);
        if (info.op == PTRACE_SYSCALL_INFO_ENTRY) calls++, call = info.entry.nr;
        else if (receives(call) && info.exit.rval > 0) bytes += info.exit.rval;
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status)) exit(1);
    printf("calls %ld\nbytes %ld\n", calls, bytes);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    // The first handle also opens what all handles share.
    pcap_close(open_handle(argv));
    int before = descriptors();
    pcap_t *p = open_handle(argv);
    printf("descriptors %d\nring_kib %ld\npromiscuity %d\n", descriptors() - before, ring_kib(), promiscuity(argv[1]));
    pcap_close(p);
    fflush(stdout);
    count_calls(argv);
    return 0;
}
