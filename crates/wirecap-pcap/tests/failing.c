// Opens a device that cannot be opened, or not with few descriptors, many times: with pcap_open_live, and with
// pcap_create and two activations. Prints the error, and how many descriptors are left over.
//
// failing DEVICE DESCRIPTORS        DESCRIPTORS: how many the process may open; 0: as many as its limit permits; -1: as
//                                   many, but no netlink socket
#include <dirent.h>
#include <fcntl.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pcap/pcap.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static int descriptors(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder)) count++;
    closedir(folder);
    return count;
}

// The limit that leaves so many descriptors.
static int limit_with_free(int count) {
    int limit = 0;
    for (int free = 0; free <= count; limit++) free += fcntl(limit, F_GETFD) == -1;
    return limit - 1;
}

// As in a service with RestrictAddressFamilies= of systemd.
static int forbid_netlink(void) {
    struct sock_filter insns[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof insns / sizeof *insns, insns};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char **argv) {
    (void)argc;
    static char errbuf[PCAP_ERRBUF_SIZE], why[PCAP_ERRBUF_SIZE];
    int before = 0, more = atoi(argv[2]);
    struct rlimit enough, few;
    getrlimit(RLIMIT_NOFILE, &enough);
    if (more < 0) {
        if (forbid_netlink()) { perror("seccomp"); return 1; }
        more = 0;
    }
    // With enough descriptors it can be opened; what is opened once per process is then open.
    if (more) {
        pcap_t *p = pcap_open_live(argv[1], 100, 1, 20, why);
        if (!p) { printf("%s\n", why); return 1; }
        pcap_close(p);
    }
    for (int round = 0; round <= 10; round++) {
        if (round == 1) before = descriptors();
        few = (struct rlimit){limit_with_free(more), enough.rlim_max};
        if (more) setrlimit(RLIMIT_NOFILE, &few);
        pcap_t *p = pcap_open_live(argv[1], 100, 1, 20, why);
        if (p) { printf("opened\n"); return 1; }
        p = pcap_create(argv[1], errbuf);
        if (p) {
            pcap_set_snaplen(p, 100);
            for (int n = 0; n < 2; n++)
                if (pcap_activate(p) >= 0) { printf("activated\n"); return 1; }
            // A handle that was never activated needs a descriptor too.
            if (!more && pcap_set_snaplen(p, 200)) { printf("cannot be set: %s\n", pcap_geterr(p)); return 1; }
            pcap_close(p);
        }
        setrlimit(RLIMIT_NOFILE, &enough);
    }
    printf("%s\nleft over: %d\n", why, descriptors() - before);
    return 0;
}
