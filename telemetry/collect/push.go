package collect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"time"
	"unicode/utf8"

	"github.com/kvtier/kvtier/telemetry"
)

// Push reports a source to the root's collector until ctx ends, and then a last time. Push
// makes reports in one goroutine, and only while a collector listens. It returns in bounded
// time after the end of ctx, also if the source hangs.
func Push(ctx context.Context, root string, source *telemetry.Source, opt Options) {
	opt = opt.withDefaults()
	p := newPusher(root, source, opt)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.run(ctx)
	}()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	timer := time.NewTimer(opt.Intervals.Last + opt.Intervals.Try)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// pusher sends the reports of one source. Its methods are called in one goroutine.
type pusher struct {
	dir    string
	source *telemetry.Source
	opt    Options
	client *http.Client
	conn   *watched      // the latest connection
	spare  chan net.Conn // the same, until the client takes it
	broken chan *watched // connections that ended; has room for one

	heard    bool // the last attempt reached a collector
	ever     bool // some attempt did
	failures int
	seed     maphash.Seed
	sum      uint64    // of the last report that was accepted, without its time
	accepted time.Time // when it was
}

func newPusher(root string, source *telemetry.Source, opt Options) *pusher {
	if abs, err := filepath.Abs(root); err == nil {
		root = abs
	}
	p := &pusher{dir: filepath.Join(root, directoryName), source: source, opt: opt,
		spare: make(chan net.Conn, 1), broken: make(chan *watched, 1), seed: maphash.MakeSeed()}
	p.client = newClient(func(context.Context) (net.Conn, error) {
		select {
		case conn := <-p.spare:
			return conn, nil
		default:
			return nil, errors.New("the connection to the collector has ended")
		}
	})
	return p
}

// watched is a connection that tells of its end: the client always reads from it. A successor
// of the collector then soon gets a report.
type watched struct {
	net.Conn
	broken chan *watched
}

func (w *watched) Read(data []byte) (int, error) {
	n, err := w.Conn.Read(data)
	if err != nil {
		select {
		case w.broken <- w:
		default:
		}
	}
	return n, err
}

// newClient returns a client of a collector. Proxies of the environment do not count.
func newClient(dial func(context.Context) (net.Conn, error)) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		IdleConnTimeout: idleTime, DisableCompression: true,
		MaxResponseHeaderBytes: headerBytesMax,
	}}
}

// address is that of a request to the collector.
func address(path string) string { return "http://collector" + path }

// soonest is the part of an interval after which a nudge may cause the next report.
const soonest = 10

func (p *pusher) run(ctx context.Context) {
	defer p.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	nudged := p.opt.Nudge
	var asked chan<- struct{}
	for {
		select {
		case <-ctx.Done():
			p.last(context.WithoutCancel(ctx))
			return
		case asked = <-nudged:
			if !p.heard {
				asked = answered(asked) // nobody listens
				continue
			}
			nudged = nil // until the next report
			if asked == nil {
				timer.Reset(time.Until(p.accepted.Add(p.opt.Intervals.Report / soonest)))
			} else {
				timer.Reset(0)
			}
			continue
		case conn := <-p.broken:
			if p.heard && conn == p.conn {
				p.heard = false
				timer.Reset(p.opt.Intervals.Report / 4)
			}
			continue
		case <-timer.C:
		}
		nudged = p.opt.Nudge
		timer.Reset(p.step(ctx))
		asked = answered(asked)
	}
}

// answered tells somebody who waits for a report that there is nothing more to wait for.
func answered(asked chan<- struct{}) chan<- struct{} {
	if asked != nil {
		close(asked)
	}
	return nil
}

// step makes one attempt, and returns the time until the next.
func (p *pusher) step(ctx context.Context) time.Duration {
	err := p.try(ctx, false)
	if err == nil {
		p.failures = 0
		return p.opt.Intervals.Report
	}
	if p.failures == 0 {
		log := p.opt.Logger
		log.Debug("kv tier: a report was not accepted", "path", p.dir, "error", err)
	}
	p.failures = min(p.failures+1, 8)
	return min(p.opt.Intervals.Report/4<<p.failures, p.opt.Intervals.Backoff)
}

// last sends the last report. A collector that was never heard is not waited for; for another
// one there may soon be a successor.
func (p *pusher) last(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, p.opt.Intervals.Last)
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if err := p.try(ctx, true); err == nil || !p.ever {
			return
		}
		timer.Reset(p.opt.Intervals.Last / 10)
	}
}

// try sends a report, unless nothing has changed since the last one and the last one is recent.
func (p *pusher) try(ctx context.Context, last bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, p.opt.Intervals.Try)
	defer cancel()
	if !p.heard { // a report costs more than a connection that is refused
		conn, err := dial(ctx, p.dir, false)
		if err != nil {
			return err
		}
		p.keep(conn)
	}
	data, sum, err := p.report()
	if err != nil {
		return err
	}
	if p.heard && !last && sum == p.sum && time.Since(p.accepted) < p.opt.Intervals.Heartbeat {
		return nil
	}
	path := reportPath
	if last {
		path += "?last=1"
	}
	p.heard = false
	if err := p.send(ctx, path, data); err != nil {
		p.client.CloseIdleConnections()
		return err
	}
	p.heard, p.ever, p.sum, p.accepted = true, true, sum, time.Now()
	return nil
}

// keep leaves a connection to the client.
func (p *pusher) keep(conn net.Conn) {
	p.close()
	p.conn = &watched{Conn: conn, broken: p.broken}
	p.spare <- p.conn
}

// report returns a report as JSON, and a sum of it that leaves out its time.
func (p *pusher) report() (data []byte, sum uint64, err error) {
	r := p.source.Report()
	at := r.At
	r.At = time.Time{}
	if data, err = fit(&r); err != nil {
		return nil, 0, err
	}
	sum = maphash.Bytes(p.seed, data)
	r.At = at
	data, err = json.Marshal(r)
	return data, sum, err
}

func (p *pusher) send(ctx context.Context, path string, data []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address(path), bytes.NewReader(data))
	if err != nil {
		return err
	}
	answer, err := p.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, headerBytesMax))
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusNoContent {
		return fmt.Errorf("the collector refused a report: %s: %q", answer.Status, text)
	}
	return nil
}

// close closes the connections that no request uses.
func (p *pusher) close() {
	p.client.CloseIdleConnections()
	select {
	case conn := <-p.spare:
		conn.Close()
	default:
	}
}

// timeBytes is more than a time adds to a report.
const timeBytes = 64

// fit encodes a report, and cuts those of its parts that are longer than a collector accepts.
func fit(r *telemetry.Report) ([]byte, error) {
	r.Slots = r.Slots[:min(len(r.Slots), telemetry.SlotsMax)]
	r.Prompts = r.Prompts[max(0, len(r.Prompts)-telemetry.PromptsMax):]
	r.Tiers = r.Tiers[:min(len(r.Tiers), tiersMax)]
	r.Memory = r.Memory[:min(len(r.Memory), memoryMax)]
	r.Busters = r.Busters[:min(len(r.Busters), telemetry.BustersMax)]
	cuts := []func(){
		func() { r.Prompts, r.Busters = nil, nil },
		func() { r.Slots, r.Memory, r.Gauges = nil, nil, nil },
	}
	if !utf8.ValidString(r.Model.Namespace) {
		cuts[0]() // JSON could give the Words to another namespace
	}
	for {
		data, err := json.Marshal(r)
		if err != nil {
			return nil, err
		}
		if len(data)+timeBytes <= telemetry.ReportBytesMax {
			return data, nil
		}
		if len(cuts) == 0 {
			return nil, errors.New("a report is too large for a collector")
		}
		cuts[0]()
		cuts = cuts[1:]
	}
}
