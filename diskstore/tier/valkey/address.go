package valkey

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// defaultPrefix begins the keys of an address that names no prefix.
const defaultPrefix = "kvtier:"

// errAddress tells nothing of the address: in one that cannot be read, the password may be anywhere.
var errAddress = errors.New("the address of a Valkey or Redis is valkey://USER:PASSWORD@HOST:PORT/DB?prefix=PREFIX, with valkeys:// for TLS, " +
	"or unix://USER:PASSWORD@/SOCKET?db=DB&prefix=PREFIX; in a password write %23 for #, %25 for %, %2F for / and %3F for ?")

// address is what an address says.
type address struct {
	network, host  string // host with its port, or the path of a socket
	tls            *tls.Config
	user, password string
	db             int
	prefix         string
}

// String is the address without the user and the password.
func (a address) String() string {
	scheme := "valkey"
	switch {
	case a.network == "unix":
		return "unix://" + a.host
	case a.tls != nil:
		scheme = "valkeys"
	}
	return fmt.Sprintf("%s://%s/%d", scheme, a.host, a.db)
}

// parse reads an address. The only error is errAddress.
func parse(text string) (a address, err error) {
	u, err := url.Parse(text)
	if err != nil || u.Fragment != "" || u.Opaque != "" {
		return a, errAddress
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return a, errAddress
	}
	db := strings.TrimPrefix(u.Path, "/")
	switch u.Scheme {
	case "valkeys", "rediss":
		a.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		fallthrough
	case "valkey", "redis":
		a.network, a.host = "tcp", net.JoinHostPort(u.Hostname(), "6379")
		if u.Port() != "" {
			a.host = u.Host
		}
		if u.Hostname() == "" {
			return a, errAddress
		}
	case "unix":
		a.network, a.host, db = "unix", u.Path, query.Get("db")
		query.Del("db")
	default:
		return a, errAddress
	}
	if db != "" {
		if a.db, err = strconv.Atoi(db); err != nil || a.db < 0 {
			return a, errAddress
		}
	}
	a.prefix = defaultPrefix
	if query.Has("prefix") {
		a.prefix = query.Get("prefix")
		query.Del("prefix")
	}
	if len(query) > 0 {
		return a, errAddress
	}
	a.user = u.User.Username()
	a.password, _ = u.User.Password()
	return a, nil
}
