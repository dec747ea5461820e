/* The launcher: a small single-threaded process that keeps runners ready, so that a command starts without a slow fork.

     guest ── launcher ── runner (one per command; root, not dumpable, sub-reaper: orphans stay below it)
                            └── leader ── exec ── the command, as the sandbox's user

   A leader is forked ahead of time and waits for its descriptors and its spec, which the guest sends to it directly. The runner
   outlives it and reaps what the command leaves behind. When nothing is left, the guest either sends NEXT, and the runner forks
   the next leader, or closes the socket, and the runner ends.

   The guest starts it with a socket as descriptor 3, and sends the setting as the first packet. The launcher offers a runner at
   the start, and another for every REFILL: S with the runner's socket, or N if no process can be created.

   Packets from a runner's socket (the layouts are in `packets.py`, too):

     L pid                       a leader is ready
     G                           about to exec, if the spec asks for it (ANNOUNCE)
     E stage errno               the command could not be started
     X status alone seconds KiB  the leader ended; alone is 1 if nothing is left below the runner; processor time and largest
                                 resident size of what was reaped
     Z seconds KiB               nothing is left below the runner now
     K pid KiB name              a child of the runner was killed by SIGKILL
     D status                    the leader was killed before it took a spec: by the kernel for memory, or by a kill of everything

   After D the runner waits for NEXT, too. A spec that was sent already is held for the next leader, which sends L and waits for
   GO: in between, the command may have been stopped, and then it must not begin.

   There is no malloc and no stdio: what is forked for every command should be small. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    SPEC_IN_PACKET = 32768,
    SPEC_IN_FILE = 8 << 20,      /* longer than any argument list that the kernel takes */
    MOST_GROUPS = 65536,         /* as many as the kernel takes */
    MOST_DESCRIPTORS = 5,        /* stdin, stdout, stderr; the shell's state or the folder to start in; a spec in a file */
    MOST_FILTER_ROWS = 4096,
    GUEST = 3,                   /* the socket to the guest: the launcher's, a runner's, a leader's */
    LOWEST_STATE_FD = 9,         /* below are our own */
    HIGHEST_STATE_FD = 1023,
    HIGHEST_CAPABILITY = 63,
    /* Commands yield to the guest, or else 500 processes that fork or spin starve it: within 20 ms, so it has to be from the start. */
    NICENESS = 19,
};

#ifndef TEMP_FAILURE_RETRY /* not in every C library */
#define TEMP_FAILURE_RETRY(call) ({ __typeof__(call) result; do result = (call); while (result == -1 && errno == EINTR); result; })
#endif

static const char REFILL = 'R', NEXT = 'N', GO = 'C', IN_FILE = 'F';

enum stage { START, FOLDER, EXEC };

struct __attribute__((packed)) setting {
    uint8_t isolated, any_user;
    /* the system call filter follows: rows of 8 bytes */
};

enum { ANNOUNCE = 1, TERMINAL = 2, FOLDER_IN_DESCRIPTOR = 4, EVERY_FLAG = 7 };

/* A spec: this, the groups (four bytes each), the strings: the folder, the arguments, the variables. Each string ends with NUL. */
struct header {
    uint32_t flags;
    int32_t state_fd; /* -1: none */
    uint32_t uid, gid;
    uint32_t groups, arguments, variables; /* how many */
    uint32_t bytes;                        /* of the strings */
};

struct spec {
    uint32_t flags;
    int state_fd;
    uid_t uid;
    gid_t gid;
    size_t group_count;
    const gid_t *groups;
    char *folder;
    char **argv, **envp;
};

struct packet {
    size_t size; /* 0: the other end is closed */
    int count;   /* -1: there was more than fits */
    int descriptors[MOST_DESCRIPTORS];
    _Alignas(8) char data[SPEC_IN_PACKET];
};

struct use {
    double seconds;
    uint64_t kib;
};

/* The state of a runner; its leader inherits it. */
static struct {
    pid_t leader;
    volatile unsigned char *has_spec; /* in memory that both of them see */
    bool holds;
    struct use use;
} runner;

static bool isolated, any_user;
static struct packet packet, held;

/* End the launcher, which would not protect what it starts. */
static _Noreturn void fail(const char *what)
{
    struct iovec parts[] = {{"the launcher failed: ", 21}, {(char *)what, strlen(what)}, {"\n", 1}};
    if (writev(STDERR_FILENO, parts, 3) < 0)
        _exit(71);
    _exit(70);
}

/* --- packets --------------------------------------------------------------------------------------------------------------- */

static bool say(const void *data, size_t size, int flags)
{
    return TEMP_FAILURE_RETRY(send(GUEST, data, size, flags | MSG_NOSIGNAL)) >= 0;
}

/* Send a runner's report. Ends the runner if the guest is gone. */
static void report(const void *data, size_t size)
{
    if (!say(data, size, 0))
        _exit(0);
}

static void close_descriptors(struct packet *from)
{
    for (int i = 0; i < from->count; i++)
        close(from->descriptors[i]);
    from->count = 0;
}

/* Receive a packet with its descriptors. Returns whether there was one. */
static bool receive(struct packet *into)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(MOST_DESCRIPTORS * sizeof(int))];
    } control;
    struct iovec data = {into->data, sizeof into->data};
    /* Not all of `control`, which is padded: the kernel would fill that with one descriptor more. */
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_LEN(sizeof into->descriptors)};
    ssize_t size = TEMP_FAILURE_RETRY(recvmsg(GUEST, &message, MSG_CMSG_CLOEXEC));
    into->size = size > 0 ? (size_t)size : 0;
    into->count = 0;
    if (size <= 0)
        return false;
    for (struct cmsghdr *each = CMSG_FIRSTHDR(&message); each != NULL; each = CMSG_NXTHDR(&message, each)) {
        if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS || each->cmsg_len < CMSG_LEN(0))
            continue;
        size_t bytes = each->cmsg_len - CMSG_LEN(0);
        size_t room = (size_t)(MOST_DESCRIPTORS - into->count) * sizeof(int);
        if (bytes > room) /* the kernel passes no more than there is space for */
            bytes = room;
        memcpy(into->descriptors + into->count, CMSG_DATA(each), bytes);
        into->count += (int)(bytes / sizeof(int));
    }
    if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
        close_descriptors(into);
        into->count = -1;
    }
    return true;
}

static bool is_signal(const struct packet *received, char kind)
{
    return received->size == 1 && received->data[0] == kind;
}

/* --- the spec -------------------------------------------------------------------------------------------------------------- */

/* Point `list` at the next `count` strings. Returns where they end, or NULL if there are fewer before `end`. */
static char *take_strings(char *at, const char *end, uint32_t count, char **list)
{
    for (uint32_t i = 0; i < count; i++) {
        char *nul = at < end ? memchr(at, '\0', (size_t)(end - at)) : NULL;
        if (nul == NULL)
            return NULL;
        list[i] = at;
        at = nul + 1;
    }
    return at;
}

/* Read the spec in `data`, which must be aligned like a number and stays in use. Returns 0 or an errno. */
static int read_spec(char *data, size_t size, struct spec *spec)
{
    struct header header;
    if (size < sizeof header)
        return EBADMSG;
    memcpy(&header, data, sizeof header);
    data += sizeof header;
    size -= sizeof header;
    if (header.groups > MOST_GROUPS || size < header.groups * sizeof(gid_t))
        return EBADMSG;
    size -= header.groups * sizeof(gid_t);
    bool has_state = header.state_fd != -1;
    if ((header.flags & ~(uint32_t)EVERY_FLAG) || header.bytes != size || header.arguments == 0)
        return EBADMSG;
    if (has_state && (header.state_fd < LOWEST_STATE_FD || header.state_fd > HIGHEST_STATE_FD))
        return EBADMSG;
    if (has_state && (header.flags & FOLDER_IN_DESCRIPTOR))
        return EBADMSG;
    if (header.uid == UINT32_MAX || header.gid == UINT32_MAX) /* these mean "no change" */
        return EBADMSG;
    /* Every string takes a byte, so this also bounds the lists. */
    uint64_t count = 1 + (uint64_t)header.arguments + header.variables;
    if (count > size)
        return EBADMSG;
    *spec = (struct spec){
        .flags = header.flags,
        .state_fd = header.state_fd,
        .uid = header.uid,
        .gid = header.gid,
        .group_count = header.groups,
        .groups = (const gid_t *)(const void *)data,
    };
    char *strings = data + header.groups * sizeof(gid_t);
    const char *end = strings + size;
    static char *few[256];
    char **lists = few;
    if (count + 2 > sizeof few / sizeof *few) { /* never freed: this process becomes the command */
        lists = mmap(NULL, (count + 2) * sizeof(char *), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (lists == MAP_FAILED)
            return ENOMEM;
    }
    spec->folder = strings;
    spec->argv = lists;
    spec->envp = lists + header.arguments + 1;
    char *at = take_strings(strings, end, 1, lists);
    at = at == NULL ? NULL : take_strings(at, end, header.arguments, spec->argv);
    at = at == NULL ? NULL : take_strings(at, end, header.variables, spec->envp);
    if (at != end)
        return EBADMSG;
    spec->argv[header.arguments] = spec->envp[header.variables] = NULL;
    return 0;
}

static int map_spec_file(int fd, struct spec *spec)
{
    struct stat state;
    if (fstat(fd, &state) != 0)
        return errno;
    if (state.st_size > SPEC_IN_FILE)
        return E2BIG;
    size_t size = (size_t)state.st_size;
    char *data = size == 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    return data == MAP_FAILED ? EBADMSG : read_spec(data, size, spec);
}

/* Read the spec that was received, and check that its descriptors came with it. Returns 0 or an errno. */
static int take_spec(struct packet *received, struct spec *spec)
{
    if (received->count < 0)
        return EMSGSIZE;
    int problem;
    if (!is_signal(received, IN_FILE)) {
        problem = read_spec(received->data, received->size, spec);
    } else {
        if (received->count == 0)
            return EBADMSG;
        int file = received->descriptors[--received->count];
        problem = map_spec_file(file, spec);
        close(file);
    }
    if (problem != 0)
        return problem;
    bool has_fourth = spec->state_fd != -1 || (spec->flags & FOLDER_IN_DESCRIPTOR);
    return received->count == (has_fourth ? 4 : 3) ? 0 : EBADMSG;
}

/* --- folders --------------------------------------------------------------------------------------------------------------- */

struct entries {
    int folder;
    long at, size; /* negative: an error */
    _Alignas(8) char data[4096];
};

/* Return the name of the next entry of a folder, or NULL at the end. */
static const char *next_name(struct entries *from)
{
    if (from->at >= from->size) {
        from->at = 0;
        from->size = syscall(SYS_getdents64, from->folder, from->data, sizeof from->data);
        if (from->size <= 0)
            return NULL;
    }
    struct {
        uint64_t inode;
        int64_t offset;
        uint16_t length;
        uint8_t type;
        char name[];
    } *entry = (void *)(from->data + from->at);
    from->at += entry->length;
    return entry->name;
}

/* --- what a command may not do --------------------------------------------------------------------------------------------- */

enum { CREATE_RULESET = 444, ADD_RULE = 445, RESTRICT_SELF = 446 };
enum { WRITE_FILE = 1 << 1, REFER = 1 << 13, TRUNCATE = 1 << 14 };

static bool allow_writes(int ruleset, int root, const char *name, uint64_t on_files)
{
    int fd = openat(root, name, O_PATH | O_NOFOLLOW | O_CLOEXEC); /* a link in a hostile image may lead to /proc */
    struct stat state;
    if (fd < 0)
        return errno == ENOENT; /* removed just now */
    if (fstat(fd, &state) != 0)
        return false;
    struct __attribute__((packed)) {
        uint64_t allowed;
        int32_t parent;
    } rule = {on_files | (S_ISDIR(state.st_mode) ? REFER : 0), fd};
    bool done = S_ISLNK(state.st_mode) || syscall(ADD_RULE, ruleset, 1, &rule, 0) == 0;
    close(fd);
    return done;
}

/* Make Landlock's rules against writing below /proc and /sys; -1 if the kernel has no Landlock. Returns whether that worked.

   Landlock denies what no rule allows, so every other entry of the root folder is allowed by name. */
static bool make_rules(int *ruleset)
{
    *ruleset = -1;
    long abi = syscall(CREATE_RULESET, NULL, 0, 1);
    if (abi < 2) /* the first one would forbid every rename between folders */
        return true;
    uint64_t on_files = WRITE_FILE | (abi >= 3 ? TRUNCATE : 0), handled = on_files | REFER;
    *ruleset = (int)syscall(CREATE_RULESET, &handled, sizeof handled, 0);
    struct entries entries = {.folder = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (*ruleset < 0 || entries.folder < 0)
        return false;
    for (const char *name; (name = next_name(&entries)) != NULL;)
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strcmp(name, "proc") != 0 && strcmp(name, "sys") != 0)
            if (!allow_writes(*ruleset, entries.folder, name, on_files))
                return false;
    close(entries.folder);
    return entries.size == 0;
}

static bool apply_rules(int ruleset)
{
    return ruleset < 0 || syscall(RESTRICT_SELF, ruleset, 0) == 0;
}

/* Make sure that nothing this process starts can ever gain a capability. */
static bool drop_bounding_capabilities(void)
{
    for (unsigned long capability = 0; capability <= HIGHEST_CAPABILITY; capability++)
        if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0)
            return errno == EINVAL; /* beyond the last capability of this kernel */
    return true;
}

static void harden(struct sock_filter *filter, size_t size)
{
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        fail("prctl");
    struct sock_fprog program = {(unsigned short)(size / sizeof *filter), filter};
    if (size % sizeof *filter != 0 || size / sizeof *filter > MOST_FILTER_ROWS)
        fail("filter");
    if (size != 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) != 0)
        fail("seccomp");
    /* Once for all commands: one that restricted itself could not look into another (gdb -p, lsof, /proc/PID/cwd). Those of any_user
       do so as soon as they know their user: root may have made a folder in /. */
    int rules = -1;
    if (!any_user && !(make_rules(&rules) && apply_rules(rules)))
        fail("landlock");
}

/* --- leaders --------------------------------------------------------------------------------------------------------------- */

/* End a leader whose command cannot be started. */
static _Noreturn void give_up(enum stage stage, int problem)
{
    struct __attribute__((packed)) {
        char kind;
        uint8_t stage;
        int32_t problem;
    } failure = {'E', (uint8_t)stage, problem};
    say(&failure, sizeof failure, 0);
    _exit(127);
}

static void check(bool done, enum stage stage)
{
    if (!done)
        give_up(stage, errno);
}

static void say_process(char kind, uint32_t number)
{
    struct __attribute__((packed)) {
        char kind;
        uint32_t number;
    } data = {kind, number};
    report(&data, sizeof data);
}

/* Wait for the spec and its descriptors, or for GO if this leader has the spec of the last one. */
static struct packet *await_spec(void)
{
    for (;;) {
        /* Not recvmsg: a process that is killed while it waits there may take the spec off the socket before it dies. */
        struct pollfd guest = {.fd = GUEST, .events = POLLIN};
        if (poll(&guest, 1, -1) < 0 && errno != EINTR)
            give_up(START, errno);
        if (guest.revents == 0)
            continue;
        if (!receive(&packet)) /* the guest is gone, or has withdrawn the command */
            _exit(0);
        *runner.has_spec = 1;
        bool go = is_signal(&packet, GO);
        if (go && !runner.holds) { /* the last leader was killed just as it took the spec */
            kill(getpid(), SIGKILL);
            _exit(127);
        }
        if (!runner.holds)
            return &packet;
        if (go)
            return &held;
    }
}

static bool is_program(const char *path)
{
    struct stat state;
    return access(path, X_OK) == 0 && !(stat(path, &state) == 0 && S_ISDIR(state.st_mode));
}

static const char *find_variable(char *const *envp, const char *name, const char *missing)
{
    size_t length = strlen(name);
    for (; *envp != NULL; envp++)
        if (strncmp(*envp, name, length) == 0 && (*envp)[length] == '=')
            return *envp + length + 1;
    return missing;
}

/* Return the path of a program. Gives up as exec would, so that G is never sent for a command that cannot start. */
static const char *look_up(const char *program, char *const *envp)
{
    if (strchr(program, '/') != NULL) {
        struct stat state;
        if (access(program, X_OK) != 0)
            give_up(EXEC, stat(program, &state) == 0 ? EACCES : errno);
        return program;
    }
    static char path[4096];
    size_t length = strlen(program);
    const char *folder = find_variable(envp, "PATH", "/bin:/usr/bin");
    for (;;) {
        const char *end = strchrnul(folder, ':');
        size_t size = (size_t)(end - folder);
        if (size + length + 3 <= sizeof path) {
            char *at = size == 0 ? stpcpy(path, ".") : mempcpy(path, folder, size);
            *at++ = '/';
            memcpy(at, program, length + 1);
            if (is_program(path))
                return path;
        }
        if (*end == '\0')
            give_up(EXEC, ENOENT);
        folder = end + 1;
    }
}

/* Switch this process to the user of a spec for good. */
static void become(const struct spec *spec)
{
    /* Not for root, whom Landlock would keep from writing into a new folder in /: it can only allow by name. */
    int rules = -1;
    if (any_user && spec->uid != 0)
        check(make_rules(&rules) && apply_rules(rules) && drop_bounding_capabilities(), START);
    check(setgroups(spec->group_count, spec->groups) == 0, START);
    check(setresgid(spec->gid, spec->gid, spec->gid) == 0, START);
    check(setresuid(spec->uid, spec->uid, spec->uid) == 0, START);
    /* The kernel forgets this with the change of the user, where fs.suid_dumpable says so: another command could take our socket. */
    check(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0, START);
}

static void place_descriptor(int from, int to)
{
    check((from == to ? fcntl(to, F_SETFD, 0) : dup2(from, to)) >= 0, START);
}

/* Wait for the spec, then become the command. Everything that does not depend on the command is done before. */
static _Noreturn void lead(void)
{
    check(setsid() >= 0, START);
    check(!isolated || setpriority(PRIO_PROCESS, 0, NICENESS) == 0, START);
    memset(packet.data, 0, 8192); /* the first write to a page after the fork is slow */
    say_process('L', (uint32_t)getpid());

    struct packet *received = await_spec();
    struct spec spec;
    int problem = take_spec(received, &spec);
    if (problem != 0)
        give_up(problem == E2BIG ? EXEC : START, problem);
    for (int i = 0; i < 3; i++)
        place_descriptor(received->descriptors[i], i);
    if (spec.state_fd != -1)
        place_descriptor(received->descriptors[3], spec.state_fd);
    if (spec.flags & TERMINAL)
        check(ioctl(STDIN_FILENO, TIOCSCTTY, 0) == 0, START);
    if (isolated)
        become(&spec);
    bool in_descriptor = spec.flags & FOLDER_IN_DESCRIPTOR;
    check((in_descriptor ? fchdir(received->descriptors[3]) : chdir(spec.folder)) == 0, FOLDER);
    const char *program = look_up(spec.argv[0], spec.envp);
    if (spec.flags & ANNOUNCE)
        say("G", 1, 0);
    execve(program, spec.argv, spec.envp);
    give_up(EXEC, errno);
}

/* --- runners --------------------------------------------------------------------------------------------------------------- */

/* Read the name of a process that has ended and is not reaped yet. */
static void read_name(pid_t pid, char *name, size_t size)
{
    char path[32] = "/proc/", digits[12];
    size_t count = 0;
    for (pid_t rest = pid; rest > 0; rest /= 10)
        digits[count++] = (char)('0' + rest % 10);
    char *at = path + strlen(path);
    while (count > 0)
        *at++ = digits[--count];
    stpcpy(at, "/comm");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, name, size);
    if (fd >= 0)
        close(fd);
    if (length > 0 && name[length - 1] == '\n')
        name[length - 1] = '\0';
}

/* Reap one child. Returns its pid; 0 if `options` contain WNOHANG and none has ended; -1 if there is none. */
static pid_t reap_child(int options, int *status)
{
    siginfo_t ended = {0};
    if (TEMP_FAILURE_RETRY(waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT | options)) != 0)
        return -1;
    if (ended.si_pid == 0)
        return 0;
    struct __attribute__((packed)) {
        char kind;
        uint32_t pid;
        uint64_t kib;
        char name[16];
    } killed = {.kind = 'K', .pid = (uint32_t)ended.si_pid};
    bool by_kill = ended.si_code == CLD_KILLED && ended.si_status == SIGKILL;
    if (by_kill)
        read_name(ended.si_pid, killed.name, sizeof killed.name);
    struct rusage usage;
    pid_t pid = TEMP_FAILURE_RETRY(wait4(ended.si_pid, status, 0, &usage));
    if (pid < 0)
        return -1;
    runner.use.seconds += (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec);
    runner.use.seconds += (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    killed.kib = (uint64_t)usage.ru_maxrss;
    if (killed.kib > runner.use.kib)
        runner.use.kib = killed.kib;
    if (by_kill && (pid != runner.leader || *runner.has_spec))
        say(&killed, sizeof killed, MSG_DONTWAIT); /* thousands may end at once: nothing should wait for this detail */
    return pid;
}

/* Report how the leader ended. Returns whether nothing is left below this process. */
static bool report_leader(int status)
{
    int other;
    pid_t pid;
    while ((pid = reap_child(WNOHANG, &other)) > 0)
        continue;
    struct __attribute__((packed)) {
        char kind;
        uint32_t status;
        uint8_t alone;
        double seconds;
        uint64_t kib;
    } end = {'X', (uint32_t)status, pid < 0, runner.use.seconds, runner.use.kib};
    report(&end, sizeof end);
    return end.alone;
}

/* Reap until nothing is below this process. Returns whether the leader was killed before it took a spec. */
static bool reap(void)
{
    runner.use = (struct use){0};
    for (;;) {
        int status;
        pid_t pid = reap_child(0, &status);
        if (pid < 0) {
            struct __attribute__((packed)) {
                char kind;
                double seconds;
                uint64_t kib;
            } empty = {'Z', runner.use.seconds, runner.use.kib};
            report(&empty, sizeof empty);
            return false;
        }
        if (pid != runner.leader)
            continue;
        runner.leader = 0; /* an orphan below it may get its number */
        if (WIFSIGNALED(status) && !*runner.has_spec) {
            say_process('D', (uint32_t)status);
            return true;
        }
        if (report_leader(status))
            return false;
    }
}

static void drop_held(void)
{
    runner.holds = false;
    close_descriptors(&held);
}

/* Wait for NEXT, and hold a spec that came before it: its leader died before it read it. */
static void await_next(void)
{
    for (;;) {
        if (!receive(&packet)) /* the guest is gone, or lets this runner end */
            _exit(0);
        if (is_signal(&packet, NEXT))
            return;
        if (!is_signal(&packet, GO)) {
            drop_held();
            held = packet;
            runner.holds = true;
        }
    }
}

/* Run one command after the other, each when nothing of the last one is left and the guest sends NEXT. */
static _Noreturn void run(void)
{
    signal(SIGCHLD, SIG_DFL);
    runner.has_spec = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (runner.has_spec == MAP_FAILED || prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
        _exit(0);
    for (;;) {
        *runner.has_spec = 0;
        runner.leader = fork();
        if (runner.leader == 0)
            lead();
        if (runner.leader < 0)
            _exit(0);
        bool unused = reap();
        drop_held();
        await_next();
        if (!unused) /* the spec of a leader that failed before it could take it, as the guest knows */
            drop_held();
    }
}

/* --- the launcher ---------------------------------------------------------------------------------------------------------- */

static void offer_spare(void)
{
    int ends[2] = {-1, -1};
    pid_t pid = -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0)
        pid = fork();
    if (pid == 0) {
        if (dup3(ends[0], GUEST, O_CLOEXEC) < 0)
            _exit(0);
        close(ends[0]);
        close(ends[1]);
        run();
    }
    struct __attribute__((packed)) {
        char kind;
        uint32_t pid;
    } data = {pid < 0 ? 'N' : 'S', pid < 0 ? 0 : (uint32_t)pid};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec content = {&data, sizeof data};
    struct msghdr message = {.msg_iov = &content, .msg_iovlen = 1};
    if (pid >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(rights), ends + 1, sizeof(int));
    }
    if (TEMP_FAILURE_RETRY(sendmsg(GUEST, &message, MSG_NOSIGNAL)) < 0)
        _exit(0);
    if (ends[0] >= 0) {
        close(ends[0]);
        close(ends[1]);
    }
}

enum { CLOSE_RANGE = 436 }; /* not in older headers */

/* Close every descriptor above the socket to the guest. */
static void close_others(void)
{
    if (syscall(CLOSE_RANGE, GUEST + 1, ~0U, 0) == 0)
        return;
    struct entries entries = {.folder = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC)}; /* before Linux 5.9 */
    if (entries.folder < 0)
        fail("/proc/self/fd");
    for (const char *name; (name = next_name(&entries)) != NULL;) {
        int fd = 0;
        for (; *name >= '0' && *name <= '9'; name++)
            fd = 10 * fd + (*name - '0');
        if (fd > GUEST && fd != entries.folder)
            close(fd);
    }
    if (entries.size < 0)
        fail("/proc/self/fd");
    if (entries.folder > GUEST)
        close(entries.folder);
}

/* Leave behind what this process inherited: descriptors, signals, a terminal. */
static void start_afresh(void)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    static const long by_default[16];
    for (int number = 1; number <= 64; number++) /* not signal(), which leaves out what the C library uses itself */
        syscall(SYS_rt_sigaction, number, by_default, NULL, 8);
    signal(SIGCHLD, SIG_IGN); /* runners are reaped by the kernel */
    if (fcntl(GUEST, F_SETFD, FD_CLOEXEC) != 0)
        fail("the socket");
    close_others();
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0)
        fail("/dev/null");
    if (null > GUEST)
        close(null);
    setsid();
    umask(022);
}

int main(void)
{
    start_afresh();
    if (!receive(&packet))
        return 0;
    struct setting setting;
    if (packet.size < sizeof setting || packet.count != 0)
        return 64;
    memcpy(&setting, packet.data, sizeof setting);
    isolated = setting.isolated;
    any_user = setting.any_user;
    if (isolated) {
        size_t size = packet.size - sizeof setting;
        memmove(packet.data, packet.data + sizeof setting, size);
        harden((struct sock_filter *)(void *)packet.data, size);
    }
    do
        offer_spare();
    while (receive(&packet) && is_signal(&packet, REFILL));
    return 0;
}
