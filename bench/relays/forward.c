/* A minimal TCP relay, the least that any process between clients and a broker costs:
 *
 *   forward PORT BROKER    accepts clients at PORT and connects each of them to BROKER, until it is killed
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define FILES_MAX 65536

static char buffer[1 << 18];
static int peer_of[FILES_MAX];

static void check(int failed, const char *what) {
    if (failed) {
        perror(what);
        exit(1);
    }
}

static struct sockaddr_in loopback(const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static void join(int poll, int one, int other) {
    int on = 1;
    struct epoll_event readable = {.events = EPOLLIN, .data.fd = one};
    check(one >= FILES_MAX, "too many files");
    setsockopt(one, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    peer_of[one] = other;
    check(epoll_ctl(poll, EPOLL_CTL_ADD, one, &readable), "epoll_ctl");
}

int main(int count, char **words) {
    if (count != 3) return 2;
    int on = 1, listening = socket(AF_INET, SOCK_STREAM, 0), poll = epoll_create1(0);
    struct sockaddr_in own = loopback(words[1]), broker = loopback(words[2]);
    struct epoll_event ready[64], accepting = {.events = EPOLLIN, .data.fd = listening};
    setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    check(bind(listening, (struct sockaddr *)&own, sizeof own), "bind");
    check(listen(listening, 1024), "listen");
    check(epoll_ctl(poll, EPOLL_CTL_ADD, listening, &accepting), "epoll_ctl");
    for (;;) {
        int number = epoll_wait(poll, ready, 64, -1);
        for (int index = 0; index < number; index++) {
            int from = ready[index].data.fd;
            if (from == listening) {
                int client = accept(listening, NULL, NULL), upstream = socket(AF_INET, SOCK_STREAM, 0);
                check(client < 0 || upstream < 0, "accept");
                check(connect(upstream, (struct sockaddr *)&broker, sizeof broker), "connect");
                join(poll, client, upstream);
                join(poll, upstream, client);
                continue;
            }
            int to = peer_of[from];
            if (to == 0) continue; /* closed by an earlier event of this round */
            ssize_t size = read(from, buffer, sizeof buffer);
            for (ssize_t sent = 0, more; sent < size; sent += more) {
                more = send(to, buffer + sent, size - sent, MSG_NOSIGNAL);
                if (more < 0) size = 0;
            }
            if (size <= 0) {
                peer_of[from] = peer_of[to] = 0;
                close(from);
                close(to);
            }
        }
    }
}
