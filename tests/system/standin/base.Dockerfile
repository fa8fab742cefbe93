# Debian's own minimal system, imported by bases.py as the stage before this one; what Debian's published
# image changes for containers is changed here too.
FROM llmgw-standin/debootstrap:bookworm
LABEL llmgw.standin=base
COPY sources.list /etc/apt/sources.list
# No man pages, and no fsync for each file of a package: the layer is thrown away if the build dies.
RUN printf 'force-unsafe-io\n' > /etc/dpkg/dpkg.cfg.d/unsafe-io \
 && printf 'path-exclude /usr/share/man/*\npath-exclude /usr/share/doc/*\n' > /etc/dpkg/dpkg.cfg.d/no-docs \
 && printf 'APT::Install-Recommends "false";\nAcquire::Languages "none";\n' > /etc/apt/apt.conf.d/slim \
 && printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d
