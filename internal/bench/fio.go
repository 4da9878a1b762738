package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvtier/kvtier/internal/bench/measure"
)

// disk reads and writes files as quickly as possible: with fio, or without fio with plain
// reads and writes of this command.
type disk struct {
	fio     string // the executable, "" if missing
	version string
	dir     string // for fio's own files
}

// Options of fio. The depth is that of a restore: two pages with four requests each.
const (
	fioDepth     = 8
	fioReadBytes = 2 << 20
)

func newDisk(dir string) disk {
	d := disk{version: "plain reads and writes of this command", dir: dir}
	path, err := exec.LookPath("fio")
	if err != nil {
		return d
	}
	version, err := exec.Command(path, "--version").Output()
	if err != nil {
		return d
	}
	d.fio, d.version = path, strings.TrimSpace(string(version))
	return d
}

// readDirect reads files past the page cache with several requests at a time; it needs fio.
func (d disk) readDirect(ctx context.Context, paths []string) (rate float64, err error) {
	return d.read(ctx, paths, 1, fmt.Sprintf("ioengine=libaio\ndirect=1\niodepth=%d\nbs=%d\n", fioDepth, fioReadBytes))
}

// readCached reads files through the page cache with several readers, each into its own
// buffer of `buffer` bytes.
func (d disk) readCached(ctx context.Context, paths []string, readers, buffer int) (rate float64, err error) {
	if d.fio == "" {
		read, err := measure.ReadFiles(paths, readers, buffer)
		return read.Rate(), err
	}
	return d.read(ctx, paths, readers, fmt.Sprintf("ioengine=psync\nthread=1\ngroup_reporting=1\nbs=%d\n", buffer))
}

// read has readers of fio read files, without emptying the page cache or making files.
func (d disk) read(ctx context.Context, paths []string, readers int, options string) (float64, error) {
	names, err := d.shortNames(paths)
	if err != nil {
		return 0, err
	}
	var job strings.Builder
	fmt.Fprintf(&job, "[global]\nrw=read\ninvalidate=0\nallow_file_create=0\nfile_service_type=sequential\n%s", options)
	for i := range min(readers, len(names)) {
		var own []string
		for j := i; j < len(names); j += readers {
			own = append(own, names[j])
		}
		fmt.Fprintf(&job, "[read%d]\nfilename=%s\n", i, strings.Join(own, ":"))
	}
	return d.run(ctx, "read", job.String())
}

// write writes and syncs files one after the other.
func (d disk) write(ctx context.Context, files int, fileBytes int64) (rate float64, err error) {
	dir := filepath.Join(d.dir, "written")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return 0, fmt.Errorf("making a folder to write to: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if d.fio == "" {
		return plainWrite(dir, files, fileBytes)
	}
	return d.run(ctx, "write", fmt.Sprintf(`
[write]
rw=write
ioengine=psync
bs=%d
directory=%s
nrfiles=%d
filesize=%d
openfiles=1
file_service_type=sequential
create_on_open=1
fallocate=none
fsync_on_close=1
`, fioReadBytes, dir, files, fileBytes))
}

// run runs a job of fio and returns the rate in bytes per second.
func (d disk) run(ctx context.Context, side, job string) (float64, error) {
	file := filepath.Join(d.dir, "job.fio")
	if err := os.WriteFile(file, []byte(job), 0o600); err != nil {
		return 0, fmt.Errorf("writing fio's job: %w", err)
	}
	cmd := exec.CommandContext(ctx, d.fio, "--output-format=json", file)
	cmd.Dir = d.dir
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("running fio: %w: %s", err, strings.TrimSpace(complaint.String()))
	}
	return fioRate(out, side)
}

// fioRate reads the rate from fio's output, which may begin with notes.
func fioRate(out []byte, side string) (float64, error) {
	begin := strings.IndexByte(string(out), '{')
	if begin < 0 {
		return 0, fmt.Errorf("reading the output of fio: no JSON in %q", out)
	}
	var report struct {
		Jobs []map[string]json.RawMessage `json:"jobs"`
	}
	if err := json.Unmarshal(out[begin:], &report); err != nil {
		return 0, fmt.Errorf("reading the output of fio: %w", err)
	}
	var sum struct {
		Bytes float64 `json:"bw_bytes"`
	}
	if len(report.Jobs) != 1 {
		return 0, fmt.Errorf("reading the output of fio: %d jobs, want one", len(report.Jobs))
	}
	if err := json.Unmarshal(report.Jobs[0][side], &sum); err != nil || sum.Bytes <= 0 {
		return 0, fmt.Errorf("reading the output of fio: no rate of %s in %s", side, report.Jobs[0][side])
	}
	return sum.Bytes, nil
}

// shortNames links files under names of a few letters in fio's working folder: fio takes a
// list of at most 4,096 characters, and splits the list at colons.
func (d disk) shortNames(paths []string) ([]string, error) {
	dir := filepath.Join(d.dir, "links")
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		return nil, fmt.Errorf("making a folder of links for fio: %w", err)
	}
	names := make([]string, len(paths))
	for i, path := range paths {
		target, err := filepath.Abs(path)
		if err == nil {
			names[i] = fmt.Sprintf("links/%d", i)
			err = os.Symlink(target, filepath.Join(d.dir, names[i]))
		}
		if err != nil {
			return nil, fmt.Errorf("linking a page for fio: %w", err)
		}
	}
	return names, nil
}

// plainWrite writes and syncs files in dir.
func plainWrite(dir string, files int, fileBytes int64) (float64, error) {
	buf := make([]byte, fioReadBytes)
	for i := range buf {
		buf[i] = byte(i)
	}
	started := time.Now()
	for i := range files {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			return 0, fmt.Errorf("writing a file as large as a page's: %w", err)
		}
		for left := fileBytes; left > 0 && err == nil; left -= fioReadBytes {
			_, err = f.Write(buf[:min(left, fioReadBytes)])
		}
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			return 0, fmt.Errorf("writing a file as large as a page's: %w", err)
		}
	}
	return measure.Reading{Bytes: int64(files) * fileBytes, Took: time.Since(started)}.Rate(), nil
}
