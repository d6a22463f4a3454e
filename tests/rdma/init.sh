#!/bin/sh
# Mounts the guest's root: the host's files, read-only over 9p, with an overlay in memory. Then runs
# start.sh, which is not part of the image.
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
while read -r module; do
  insmod "/modules/$module" || echo "init: no $module"
done < /modules/order

# The guest does not write to the host's files, so it may cache them (loose); 500 KiB is the maximum
# of one request of this transport.
ninep=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o "ro,noatime,cache=loose,$ninep" root /below
mount -t tmpfs -o size=75% memory /memory
mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/below,upperdir=/memory/upper,workdir=/memory/work overlay /merged

for tree in proc sys dev; do
  mount --move /$tree /merged/$tree
done
ln -s /proc/self/fd /merged/dev/fd # for bash's process substitutions
for stream in stdin:0 stdout:1 stderr:2; do
  ln -s "/proc/self/fd/${stream#*:}" "/merged/dev/${stream%:*}"
done
mkdir -p /merged/dev/pts /merged/dev/shm
mount -t devpts devpts /merged/dev/pts
mount -t tmpfs shm /merged/dev/shm
mount -t tmpfs run /merged/run
mkdir /merged/run/control
mount -t 9p -o "cache=none,$ninep" control /merged/run/control
exec switch_root /merged /bin/bash /run/control/start.sh
