"""The shell of `hansa.delivery` in an agent: files, threads and timers.

service        performs the effects of the delivery core, and hands it what happens
files          everything on disk
outbox_files   the log of local publications: epochs, damage, reads for repair
inbox_files    the log of other nodes' publications
repair_reader  reads pending publications for receivers
reports        alarms, counters and status
crash_points   where tests crash it
"""
