// Does with Dapr's SDK for Go what the test says on standard input, a line each, and prints what came as JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	dapr "github.com/dapr/go-sdk/client"
)

// Told keeps lines of several goroutines apart, and from what the SDK itself prints.
type Told struct {
	lock sync.Mutex
}

func (told *Told) print(kind string, value any) {
	told.lock.Lock()
	defer told.lock.Unlock()
	line, err := json.Marshal(map[string]any{"kind": kind, "value": value})
	if err != nil {
		panic(err)
	}
	fmt.Printf("told %s\n", line)
}

func values(items map[string]*dapr.ConfigurationItem) map[string]string {
	found := make(map[string]string, len(items))
	for name, item := range items {
		found[name] = item.Value
	}
	return found
}

func main() {
	address, store, pause := os.Args[1], os.Args[2], os.Args[3]
	slow, err := time.ParseDuration(pause + "ms")
	if err != nil {
		panic(err)
	}
	client, err := dapr.NewClientWithAddress(address)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	told := &Told{}
	ctx := context.Background()
	subscription := ""
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		command, argument, _ := strings.Cut(lines.Text(), " ")
		switch command {
		case "get":
			items, err := client.GetConfigurationItems(ctx, store, []string{argument})
			if err != nil {
				told.print("error", err.Error())
			} else {
				told.print("items", values(items))
			}
		case "single":
			item, err := client.GetConfigurationItem(ctx, store, argument)
			if err != nil {
				told.print("error", err.Error())
			} else if item == nil {
				told.print("item", nil)
			} else {
				told.print("item", item.Value)
			}
		case "subscribe":
			handler := func(_ string, items map[string]*dapr.ConfigurationItem) {
				time.Sleep(slow)
				told.print("update", values(items))
			}
			subscription, err = client.SubscribeConfigurationItems(ctx, store, []string{argument}, handler)
			if err != nil {
				told.print("error", err.Error())
			} else {
				told.print("subscribed", subscription)
			}
		case "unsubscribe":
			err := client.UnsubscribeConfigurationItems(ctx, store, subscription)
			told.print("unsubscribed", err == nil)
		}
	}
}
