# A machine of a test's own, from inside its namespaces: $1 holds programs to be found in /opt/divvy. It ends as systemd.
# All that is written goes to memory: /etc is a copy, and /run, /tmp, /var, /home and /opt are empty.
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /opt
cp -a "$1" /opt/divvy
cp -a /etc /opt/etc
mount --bind /opt/etc /etc
for folder in run var home; do mount -t tmpfs -o mode=755 tmpfs /$folder; done
mount -t tmpfs -o mode=1777 tmpfs /tmp
mkdir /var/tmp /run/divvy-cgroups
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
else
    umount -l /sys/fs/cgroup || true
    mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
    mkdir /sys/fs/cgroup/systemd /sys/fs/cgroup/unified
    mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
    mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
fi
# What units of the distribution would do to the machine around, or wait for: the journal alone stays.
units=/etc/systemd/system
for unit in /lib/systemd/system/sysinit.target.wants/* /lib/systemd/system/local-fs.target.wants/*; do
    case ${unit##*/} in
        systemd-journald* | '*') ;;
        *) ln -sf /dev/null "$units/${unit##*/}" ;;
    esac
done
printf '[Unit]\nDescription=A machine for a test\nRequires=sysinit.target\nAfter=sysinit.target\n' >$units/booted.target
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin container=divvy \
    /usr/lib/systemd/systemd --system --unit=booted.target --log-target=console --show-status=0
